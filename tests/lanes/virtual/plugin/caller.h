// A caller of PJRT in C, for tests of the plugin: linked with its sources, in a sanitized program.
#ifndef XLA_HARNESS_TESTS_PLUGIN_CALLER_H_
#define XLA_HARNESS_TESTS_PLUGIN_CALLER_H_

#include <stdlib.h>

#include "plugin.h"

// One test: a function that runs in a process of its own.
#define TEST(name)                                                                          \
  static void name(void);                                                                   \
  __attribute__((constructor)) static void register_##name(void) { add_test(#name, name); } \
  static void name(void)

void add_test(const char *name, void (*run)(void));
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define EXPECT(condition) \
  if (!(condition)) fail("%s:%d: expected %s", __FILE__, __LINE__, #condition)

const PJRT_Api *GetPjrtApi(void);
extern const PJRT_Api *api;

// Call an entry with a struct that begins as `args` does and is exactly `size` bytes of the heap,
// so that the sanitizer sees who looks beyond; what was written is copied back.
#define CALL_SIZED(call, args, size) \
  call_sized((PJRT_Error * (*)(void *)) api->call, args, sizeof *(args), size)
PJRT_Error *call_sized(PJRT_Error *(*entry)(void *), void *args, size_t whole, size_t size);
// The same at this header's size; the call must succeed.
#define CALL(call, args) ok(CALL_SIZED(call, args, call##_Args_STRUCT_SIZE), #call)
void ok(PJRT_Error *error, const char *call);

// The error's text, which lives until the next; the error is destroyed. Fails without one.
const char *text_of(PJRT_Error *error);
PJRT_Error_Code code_of(PJRT_Error *error);

// Do `work` as the two ranks of a job, each with a device; ends with status 0 if both do. Each
// rank's leaks count.
void as_ranks(void (*work)(int number));

// An extension by its number: its calls, in the order of its header.
typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*calls[])(void *args);
} Extension;
const Extension *extension_of(int type);

PJRT_Client *create_client(void);
void destroy_client(PJRT_Client *client);
// Compile StableHLO text for one device; an error, or the executable.
PJRT_Error *try_compile(PJRT_Client *client, const char *text, PJRT_LoadedExecutable **out);
// The same with compile options other than the usual ones.
PJRT_Error *try_compile_with(PJRT_Client *client, const char *text, const char *options,
                             size_t options_size, PJRT_LoadedExecutable **out);
PJRT_LoadedExecutable *compile_program(PJRT_Client *client, const char *text);
void destroy_executable(PJRT_LoadedExecutable *executable);
// Run a program of one float[4] with `options_size` bytes of execute options.
void run(PJRT_Client *client, PJRT_LoadedExecutable *executable, size_t options_size,
         const float *in, float *out);
PJRT_Device *first_device(PJRT_Client *client);
// The same in steps: floats on a device or the first, the result of a program of one, its numbers.
PJRT_Buffer *buffer_on(PJRT_Client *client, PJRT_Device *device, const float *data, int64_t count);
PJRT_Buffer *buffer_of(PJRT_Client *client, const float *data, int64_t count);
PJRT_Buffer *execute(PJRT_LoadedExecutable *executable, PJRT_ExecuteOptions *options,
                     PJRT_Buffer *in);
void to_host(PJRT_Buffer *buffer, float *out, size_t count);
void destroy_buffer(PJRT_Buffer *buffer);

// out = in + in
#define DOUBLE                                                                    \
  "module @double { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {" \
  " %0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> } }"

#endif  // XLA_HARNESS_TESTS_PLUGIN_CALLER_H_

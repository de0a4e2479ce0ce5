#define _GNU_SOURCE
#include "caller.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const PJRT_Api *api;

// CompileOptionsProto: executable_build_options { num_replicas: 1, num_partitions: 1 }
static const char OPTIONS[] = {3 << 3 | 2, 4, 4 << 3, 1, 5 << 3, 1};

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  _exit(1);  // what is still alive is no leak
}

PJRT_Error *call_sized(PJRT_Error *(*entry)(void *), void *args, size_t whole, size_t size) {
  char *own = calloc(1, size);
  if (own == NULL) fail("no memory");
  memcpy(own, args, size < whole ? size : whole);
  memcpy(own, &size, sizeof size);
  PJRT_Error *error = entry(own);
  memcpy(args, own, size < whole ? size : whole);
  free(own);
  return error;
}

void ok(PJRT_Error *error, const char *call) {
  if (error != NULL) fail("%s: %s", call, text_of(error));
}

PJRT_Error_Code code_of(PJRT_Error *error) {
  PJRT_Error_GetCode_Args args = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE,
                                  .error = error};
  ok(api->PJRT_Error_GetCode(&args), "PJRT_Error_GetCode");
  return args.code;
}

const char *text_of(PJRT_Error *error) {
  static char text[4096];
  if (error == NULL) fail("expected an error");
  PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                     .error = error};
  api->PJRT_Error_Message(&message);
  snprintf(text, sizeof text, "%.*s", (int)message.message_size, message.message);
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE,
                                     .error = error};
  api->PJRT_Error_Destroy(&destroy);
  return text;
}

static void become(int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  setenv("CLOUD_TPU_TASK_ID", text, 1);
  setenv("VIRTUAL_TPU_TOPOLOGY", "1x2", 1);
  setenv("VIRTUAL_TPU_BOUNDS", "2,1,1", 1);
  setenv("TPU_PROCESS_BOUNDS", "2,1,1", 1);
  setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,1,1", 1);
  unsetenv("MEGASCALE_NUM_SLICES");
}

// Both ranks must end well. If one fails, the other, which may wait for it, ends with this process.
void as_ranks(void (*work)(int number)) {
  for (int number = 0; number < 2; ++number) {
    if (fork() != 0) continue;
    EXPECT(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    become(number);
    work(number);
    exit(0);
  }
  for (int number = 0; number < 2; ++number) {
    int status;
    EXPECT(wait(&status) > 0);  // for the first to end
    EXPECT(status == 0);
  }
}

const Extension *extension_of(int type) {
  for (const PJRT_Extension_Base *at = api->extension_start; at != NULL; at = at->next) {
    if ((int)at->type == type) return (const Extension *)at;
  }
  fail("there is no extension %d", type);
}

PJRT_Client *create_client(void) {
  PJRT_Client_Create_Args args = {0};
  CALL(PJRT_Client_Create, &args);
  EXPECT(args.client != NULL);
  return args.client;
}

void destroy_client(PJRT_Client *client) {
  PJRT_Client_Destroy_Args args = {.client = client};
  CALL(PJRT_Client_Destroy, &args);
}

PJRT_Error *try_compile_with(PJRT_Client *client, const char *text, const char *options,
                             size_t options_size, PJRT_LoadedExecutable **out) {
  const PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                                .code = (char *)text,
                                .code_size = strlen(text),
                                .format = "mlir",
                                .format_size = 4};
  PJRT_Client_Compile_Args args = {.client = client,
                                   .program = &program,
                                   .compile_options = options,
                                   .compile_options_size = options_size};
  PJRT_Error *error = CALL_SIZED(PJRT_Client_Compile, &args, PJRT_Client_Compile_Args_STRUCT_SIZE);
  *out = args.executable;
  return error;
}

PJRT_Error *try_compile(PJRT_Client *client, const char *text, PJRT_LoadedExecutable **out) {
  return try_compile_with(client, text, OPTIONS, sizeof OPTIONS, out);
}

PJRT_LoadedExecutable *compile_program(PJRT_Client *client, const char *text) {
  PJRT_LoadedExecutable *executable;
  ok(try_compile(client, text, &executable), "PJRT_Client_Compile");
  return executable;
}

void destroy_executable(PJRT_LoadedExecutable *executable) {
  PJRT_LoadedExecutable_Destroy_Args args = {.executable = executable};
  CALL(PJRT_LoadedExecutable_Destroy, &args);
}

PJRT_Device *first_device(PJRT_Client *client) {
  PJRT_Client_AddressableDevices_Args args = {.client = client};
  CALL(PJRT_Client_AddressableDevices, &args);
  return args.addressable_devices[0];
}

static void await(PJRT_Event *event) {
  PJRT_Event_Await_Args args = {.event = event};
  CALL(PJRT_Event_Await, &args);
  PJRT_Event_Destroy_Args destroy = {.event = event};
  CALL(PJRT_Event_Destroy, &destroy);
}

void destroy_buffer(PJRT_Buffer *buffer) {
  PJRT_Buffer_Destroy_Args args = {.buffer = buffer};
  CALL(PJRT_Buffer_Destroy, &args);
}

PJRT_Buffer *buffer_on(PJRT_Client *client, PJRT_Device *device, const float *data, int64_t count) {
  PJRT_Client_BufferFromHostBuffer_Args args = {
      .client = client,
      .data = data,
      .type = PJRT_Buffer_Type_F32,
      .dims = &count,
      .num_dims = 1,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = device};
  CALL(PJRT_Client_BufferFromHostBuffer, &args);
  await(args.done_with_host_buffer);
  return args.buffer;
}

PJRT_Buffer *buffer_of(PJRT_Client *client, const float *data, int64_t count) {
  return buffer_on(client, first_device(client), data, count);
}

PJRT_Buffer *execute(PJRT_LoadedExecutable *executable, PJRT_ExecuteOptions *options,
                     PJRT_Buffer *in) {
  PJRT_Buffer *result, **results[] = {&result}, *const arguments[] = {in};
  PJRT_Buffer *const *const lists[] = {arguments};
  PJRT_LoadedExecutable_Execute_Args args = {.executable = executable,
                                             .options = options,
                                             .argument_lists = lists,
                                             .num_devices = 1,
                                             .num_args = 1,
                                             .output_lists = results};
  CALL(PJRT_LoadedExecutable_Execute, &args);
  return result;
}

void to_host(PJRT_Buffer *buffer, float *out, size_t count) {
  PJRT_Buffer_ToHostBuffer_Args args = {.src = buffer, .dst = out, .dst_size = count * sizeof *out};
  CALL(PJRT_Buffer_ToHostBuffer, &args);
  await(args.event);
}

void run(PJRT_Client *client, PJRT_LoadedExecutable *executable, size_t options_size,
         const float *in, float *out) {
  PJRT_Buffer *given = buffer_of(client, in, 4);
  PJRT_ExecuteOptions *options = calloc(1, options_size);
  memcpy(options, &options_size, sizeof options_size);
  PJRT_Buffer *result = execute(executable, options, given);
  free(options);
  to_host(result, out, 4);
  destroy_buffer(result);
  destroy_buffer(given);
}

enum { MOST = 100 };
static struct {
  const char *name;
  void (*run)(void);
} tests[MOST];
static int count;

void add_test(const char *name, void (*run)(void)) {
  if (count == MOST) fail("expected at most %d tests", MOST);
  tests[count].name = name;
  tests[count++].run = run;
}

// The tests that are named, or all, in processes forked once the backend is loaded. Each ends with
// "name: status" on standard output; what it says of itself stands before, on standard error.
int main(int argc, char **argv) {
  api = GetPjrtApi();
  for (int i = 0; i < count; ++i) {
    int wanted = argc == 1;
    for (int j = 1; j < argc; ++j) wanted |= strcmp(argv[j], tests[i].name) == 0;
    if (!wanted) continue;
    fprintf(stderr, "--- %s\n", tests[i].name);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      tests[i].run();
      exit(0);  // where leaks are looked for
    }
    int status;
    waitpid(child, &status, 0);
    printf("%s: %d\n", tests[i].name, status);
  }
  return 0;
}

// The bytes of a buffer, as TorchTPU's windows copy them.
#include <string.h>

#include "caller.h"

enum { RAW_BUFFER = 8 };
enum { CREATE, DESTROY, SIZE, MEMORY, TO_DEVICE, TO_HOST, POINTER };  // in the header's order

typedef struct {
  size_t struct_size;
  void *extension_start;
  void *raw;
  void *host;
  int64_t offset, size;
  PJRT_Event *event;
} CopyArgs;

typedef struct {
  size_t struct_size;
  void *extension_start;
  void *buffer;
  void *out;
} AskArgs;

static void *ask(int call, void *buffer) {
  AskArgs args = {.struct_size = sizeof args, .buffer = buffer, .out = (void *)-1};
  ok(extension_of(RAW_BUFFER)->calls[call](&args), "PJRT_RawBuffer");
  return args.out;
}

static PJRT_Error *copy(int call, void *raw, void *host, int64_t offset, int64_t size) {
  CopyArgs args = {sizeof args, NULL, raw, host, offset, size, NULL};
  PJRT_Error *error = extension_of(RAW_BUFFER)->calls[call](&args);
  return error == NULL ? event_await(args.event) : error;
}

static const float IN[] = {1, 2, 3, 4};

TEST(a_part_of_a_buffer_is_copied_either_way) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE);
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer *in = buffer_of(client, IN, 4), *buffer = execute(executable, &options, in);
  void *raw = ask(CREATE, buffer);
  EXPECT(ask(SIZE, raw) == (void *)(4 * sizeof(float)));
  PJRT_Buffer_Memory_Args memory = {.buffer = buffer};
  CALL(PJRT_Buffer_Memory, &memory);
  EXPECT(ask(MEMORY, raw) == memory.memory);
  EXPECT(ask(POINTER, raw) == NULL);  // a TPU's memory is not the host's
  float part[] = {10, 20}, out[4];
  ok(copy(TO_DEVICE, raw, part, sizeof *part, sizeof part), "CopyRawHostToDevice");
  to_host(buffer, out, 4);
  EXPECT(out[0] == 2 && out[1] == 10 && out[2] == 20 && out[3] == 8);
  ok(copy(TO_HOST, raw, part, 2 * sizeof *part, sizeof part), "CopyRawDeviceToHost");
  EXPECT(part[0] == 20 && part[1] == 8);
  ok(copy(TO_DEVICE, raw, NULL, 4 * sizeof *part, 0),
     "CopyRawHostToDevice");  // nothing, at its end
  ask(DESTROY, raw);
  to_host(in, out, 4);
  EXPECT(out[1] == 2);  // another buffer's are not touched
  destroy_buffer(buffer);
  destroy_buffer(in);
  destroy_executable(executable);
  destroy_client(client);
}

TEST(nothing_is_copied_beyond_a_buffer) {
  PJRT_Client *client = create_client();
  PJRT_Buffer *buffer = buffer_of(client, IN, 4);
  void *raw = ask(CREATE, buffer);
  const int64_t wrong[][2] = {{0, 17}, {16, 1}, {-4, 4}, {4, -4}, {INT64_MAX, 1}, {1, INT64_MAX}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    for (int call = TO_DEVICE; call <= TO_HOST; ++call) {
      float host[8] = {0};
      PJRT_Error *error = copy(call, raw, host, wrong[i][0], wrong[i][1]);
      EXPECT(error != NULL);
      EXPECT(strstr(text_of(error), "of a buffer that has 16") != NULL);
    }
  }
  float out[4];
  to_host(buffer, out, 4);
  EXPECT(memcmp(out, IN, sizeof out) == 0);
  ask(DESTROY, raw);
  destroy_buffer(buffer);
  destroy_client(client);
}

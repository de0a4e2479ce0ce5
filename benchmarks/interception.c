// Times one program's execution on two PJRT plugins, in turns: interception PLUGIN PLUGIN PROGRAM
// prints the median microseconds of each. PROGRAM is a StableHLO portable artifact of a function of
// one float32 SIZExSIZE argument.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pjrt_c_api.h"

enum { SIZE = 448, RUNS = 1500, WARM_UP = 100, SIDES = 2 };

typedef struct {
  const PJRT_Api *api;
  PJRT_LoadedExecutable *program;
  PJRT_Buffer *argument;
  double times[RUNS];
} Side;

#define CALL(side, name, ...)                                                      \
  name##_Args name##_args = {.struct_size = name##_Args_STRUCT_SIZE, __VA_ARGS__}; \
  check((side)->api, #name, (side)->api->name(&name##_args))

static void check(const PJRT_Api *api, const char *call, PJRT_Error *error) {
  if (error == NULL) return;
  PJRT_Error_Message_Args args = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                  .error = error};
  api->PJRT_Error_Message(&args);
  fprintf(stderr, "%s: %.*s\n", call, (int)args.message_size, args.message);
  exit(1);
}

static void await(const Side *side, PJRT_Event *event) {
  CALL(side, PJRT_Event_Await, .event = event);
  CALL(side, PJRT_Event_Destroy, .event = event);
}

static char *contents(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(2);
  *size = (size_t)ftell(file);
  rewind(file);
  char *bytes = malloc(*size);
  if (fread(bytes, 1, *size, file) != *size) exit(2);
  fclose(file);
  return bytes;
}

static void start(Side *side, const char *plugin, char *code, size_t code_size) {
  void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  const PJRT_Api *(*get)(void) = NULL;
  if (library != NULL) *(void **)&get = dlsym(library, "GetPjrtApi");
  if (get == NULL) {
    fprintf(stderr, "%s: %s\n", plugin, dlerror());
    exit(2);
  }
  side->api = get();
  CALL(side, PJRT_Client_Create, .create_options = NULL);
  PJRT_Client *client = PJRT_Client_Create_args.client;
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                          .code = code,
                          .code_size = code_size,
                          .format = "mlir",
                          .format_size = 4};
  // CompileOptionsProto: one replica, one partition.
  static const char OPTIONS[] = {0x1A, 4, 0x20, 1, 0x28, 1};
  CALL(side, PJRT_Client_Compile, .client = client, .program = &program, .compile_options = OPTIONS,
       .compile_options_size = sizeof OPTIONS);
  side->program = PJRT_Client_Compile_args.executable;
  CALL(side, PJRT_Client_AddressableDevices, .client = client);
  static float values[SIZE * SIZE];
  static const int64_t dims[] = {SIZE, SIZE};
  CALL(side, PJRT_Client_BufferFromHostBuffer, .client = client, .data = values,
       .type = PJRT_Buffer_Type_F32, .dims = dims, .num_dims = 2,
       .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
       .device = PJRT_Client_AddressableDevices_args.addressable_devices[0]);
  side->argument = PJRT_Client_BufferFromHostBuffer_args.buffer;
  await(side, PJRT_Client_BufferFromHostBuffer_args.done_with_host_buffer);
}

static double execute(const Side *side) {
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer *const arguments[] = {side->argument};
  PJRT_Buffer *const *const lists[] = {arguments};
  PJRT_Buffer *result = NULL, **results[] = {&result};
  PJRT_Event *done = NULL;
  CALL(side, PJRT_LoadedExecutable_Execute, .executable = side->program, .options = &options,
       .argument_lists = lists, .num_devices = 1, .num_args = 1, .output_lists = results,
       .device_complete_events = &done);
  await(side, done);
  clock_gettime(CLOCK_MONOTONIC, &after);
  CALL(side, PJRT_Buffer_Destroy, .buffer = result);
  return 1e6 * (double)(after.tv_sec - before.tv_sec) +
         1e-3 * (double)(after.tv_nsec - before.tv_nsec);
}

static int ascending(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int count, char **words) {
  if (count != 4) return 2;
  static Side sides[SIDES];
  size_t size;
  char *code = contents(words[3], &size);
  for (int side = 0; side < SIDES; ++side) start(&sides[side], words[1 + side], code, size);
  for (int run = -WARM_UP; run < RUNS; ++run) {
    for (int turn = 0; turn < SIDES; ++turn) {
      Side *side = &sides[(turn + run + WARM_UP) % SIDES];  // who comes second finds warm threads
      const double time = execute(side);
      if (run >= 0) side->times[run] = time;
    }
  }
  for (int side = 0; side < SIDES; ++side) {
    qsort(sides[side].times, RUNS, sizeof(double), ascending);
    printf("%.3f\n", sides[side].times[RUNS / 2]);
  }
  return 0;
}

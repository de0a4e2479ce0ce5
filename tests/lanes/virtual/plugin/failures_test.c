// Executions that fail when some of their devices have results already: nobody gets those.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "caller.h"

// CompileOptionsProto: executable_build_options { num_replicas: 4, num_partitions: 1 }
static const char FOUR_REPLICAS[] = {3 << 3 | 2, 4, 4 << 3, 4, 5 << 3, 1};

enum { DEVICES = 2, MOST_ARGUMENTS = 1, MOST_RESULTS = 2 };

// --- Calls of the backend, counted and, where a test asks for that, refused by it

static const PJRT_Api *real;
static PJRT_Api counting;
static atomic_int buffers, events;
static int results_of_one;

// One call of an entry that the backend refuses, since its struct is too small.
typedef struct {
  const char *call;
  int after;  // so many that it takes
} Refusal;
static Refusal refusal;

static size_t size_for(const char *call, size_t size) {
  if (refusal.call == NULL || strcmp(refusal.call, call) != 0) return size;
  return refusal.after-- == 0 ? 1 : size;
}

#define COUNTED(function, call, count)             \
  static PJRT_Error *function(call##_Args *args) { \
    const size_t size = args->struct_size;         \
    args->struct_size = size_for(#call, size);     \
    PJRT_Error *error = real->call(args);          \
    args->struct_size = size;                      \
    if (error == NULL) count;                      \
    return error;                                  \
  }
COUNTED(count_promise, PJRT_Client_CreateAliasBuffer, ++buffers)
COUNTED(count_copy, PJRT_Buffer_CopyToMemory, ++buffers)
COUNTED(count_reading, PJRT_Buffer_ToHostBuffer, ++events)
COUNTED(count_waiting, PJRT_Buffer_ReadyEvent, ++events)
COUNTED(count_hearing, PJRT_Event_OnReady, (void)0)
COUNTED(count_buffer_end, PJRT_Buffer_Destroy, --buffers)
COUNTED(count_event_end, PJRT_Event_Destroy, --events)

static PJRT_Error *count_execution(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = real->PJRT_LoadedExecutable_Execute(args);
  const int devices = error == NULL ? (int)args->num_devices : 0;
  buffers += devices * results_of_one;
  events += devices;
  return error;
}

static void start_counting(int results, Refusal refused) {
  results_of_one = results;
  refusal = refused;
  real = backend;
  counting = *real;
  counting.PJRT_LoadedExecutable_Execute = count_execution;
  counting.PJRT_Client_CreateAliasBuffer = count_promise;
  counting.PJRT_Buffer_CopyToMemory = count_copy;
  counting.PJRT_Buffer_ToHostBuffer = count_reading;
  counting.PJRT_Buffer_ReadyEvent = count_waiting;
  counting.PJRT_Event_OnReady = count_hearing;
  counting.PJRT_Buffer_Destroy = count_buffer_end;
  counting.PJRT_Event_Destroy = count_event_end;
  backend = &counting;
}

// Threads of the plugin and of the backend may still be ending what they have.
static void expect_nothing_left(void) {
  for (int tries = 0; tries < 500 && (buffers != 0 || events != 0); ++tries) usleep(10000);
  backend = real;
  if (buffers != 0 || events != 0) fail("left: %d buffers, %d events", buffers, events);
}

// --- Executing

static const float IN[] = {1, 2, 3, 4};

typedef PJRT_Buffer *Results[DEVICES][MOST_RESULTS];

// Execute on the devices; whoever asks for `complete` gets an event for each.
static PJRT_Error *execute_on(PJRT_LoadedExecutable *executable, size_t devices,
                              PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS], Results results,
                              PJRT_Event **complete) {
  PJRT_Buffer **outputs[DEVICES] = {results[0], results[1]};
  PJRT_Buffer *const *const lists[DEVICES] = {given[0], given[1]};
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_LoadedExecutable_Execute_Args execute = {.executable = executable,
                                                .options = &options,
                                                .argument_lists = lists,
                                                .num_devices = devices,
                                                .num_args = MOST_ARGUMENTS,
                                                .output_lists = outputs,
                                                .device_complete_events = complete};
  return CALL_SIZED(PJRT_LoadedExecutable_Execute, &execute,
                    PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
}

static void expect_error(PJRT_Error *error, const char *text) {
  const char *reason = text_of(error);
  if (strstr(reason, text) == NULL) fail("expected %s but got %s", text, reason);
}

// Execute on the devices; expects an error with this text, and that it leaves nothing.
static void expect_failure(PJRT_LoadedExecutable *executable, size_t devices,
                           PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS], int results_count,
                           Refusal refused, const char *text) {
  Results results;
  PJRT_Event *complete[DEVICES];
  start_counting(results_count, refused);
  expect_error(execute_on(executable, devices, given, results, complete), text);
  expect_nothing_left();
}

// A process of two, each with two devices, and a program for all four.
typedef struct {
  PJRT_Client *client;
  PJRT_LoadedExecutable *executable;
  PJRT_Buffer *given[DEVICES][MOST_ARGUMENTS];
} Half;

static Half become_half(const char *text) {
  setenv("VIRTUAL_TPU_TOPOLOGY", "1x4", 1);
  setenv("VIRTUAL_TPU_BOUNDS", "4,1,1", 1);
  setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "2,1,1", 1);
  Half half = {.client = create_client()};
  PJRT_Client_AddressableDevices_Args here = {.client = half.client};
  CALL(PJRT_Client_AddressableDevices, &here);
  EXPECT(here.num_addressable_devices == DEVICES);
  for (int i = 0; i < DEVICES; ++i) {
    half.given[i][0] = buffer_on(half.client, here.addressable_devices[i], IN, 4);
  }
  ok(try_compile_with(half.client, text, FOUR_REPLICAS, sizeof FOUR_REPLICAS, &half.executable),
     "compile");
  return half;
}

static void end_half(const Half *half) {
  for (int i = 0; i < DEVICES; ++i) destroy_buffer(half->given[i][0]);
  destroy_executable(half->executable);
  destroy_client(half->client);
}

// Each device runs it by itself, and the second one's argument has been deleted.
static void run_on_each(int number) {
  (void)number;
  const Half half = become_half(DOUBLE);
  PJRT_Buffer_Delete_Args delete = {.buffer = half.given[1][0]};
  CALL(PJRT_Buffer_Delete, &delete);
  expect_failure(half.executable, DEVICES, half.given, 1, (Refusal){0}, "deleted or donated");
  end_half(&half);
}

TEST(a_device_that_fails_takes_back_what_earlier_ones_have_computed) { as_ranks(run_on_each); }

// out = the sum of all devices' in
#define SUM_AND(rest, type)                                                           \
  "module @sum { func.func public @main(%a: tensor<4xf32>) -> tensor<" type           \
  "> {"                                                                               \
  " %0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):"     \
  " %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> })"     \
  " {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> " \
  "tensor<4xf32> " rest " : tensor<" type "> } }"

// Both devices are to meet those of the other process, and the second one fails.
static void run_together(int number) {
  (void)number;
  const Half half = become_half(SUM_AND("return %0", "4xf32"));
  // Each device is promised its result and its completion. Each waits for its argument, too.
  static const Refusal REFUSED[] = {{"PJRT_Client_CreateAliasBuffer", 2},
                                    {"PJRT_Client_CreateAliasBuffer", 3},
                                    {"PJRT_Buffer_ReadyEvent", 3}};
  for (int i = 0; i < 3; ++i) {
    expect_failure(half.executable, DEVICES, half.given, 1, REFUSED[i], "Args size");
  }
  end_half(&half);
}

TEST(a_device_that_fails_takes_back_what_earlier_ones_were_promised) { as_ranks(run_together); }

// A result of this size stays in its segment, and the plugin does not hear when it ends.
static void run_with_large_result(int number) {
  (void)number;
  const Half half =
      become_half(SUM_AND("%1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<4xf32>) -> "
                          "tensor<4096x4xf32> return %1",
                          "4096x4xf32"));
  Results results;
  start_counting(1, (Refusal){"PJRT_Event_OnReady", 0});
  ok(execute_on(half.executable, DEVICES, half.given, results, NULL), "execute");
  for (int i = 0; i < DEVICES; ++i) {
    PJRT_Buffer_ReadyEvent_Args ready = {SIZED(PJRT_Buffer_ReadyEvent_Args),
                                         .buffer = results[i][0]};
    ok(real->PJRT_Buffer_ReadyEvent(&ready), "ready event");
    expect_error(event_await(ready.event), "OnReady size");
    destroy_buffer(results[i][0]);
  }
  backend = real;
  end_half(&half);
}

TEST(a_result_that_cant_be_held_gives_its_segment_back) { as_ranks(run_with_large_result); }

// Both results belong in the host's memory.
#define MOVED                                                                    \
  "module @moved { func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32>," \
  " tensor<4xf32>) { %0 = stablehlo.add %a, %a : tensor<4xf32> return %a, %0 :"  \
  " tensor<4xf32>, tensor<4xf32> } } // xla_harness_results:pp;"

TEST(a_result_that_cant_be_moved_takes_back_all) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable = compile_program(client, MOVED);
  PJRT_Buffer *argument = buffer_of(client, IN, 4);
  PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS] = {{argument}};
  const Refusal refused = {"PJRT_Buffer_CopyToMemory", 1};  // that of the second result
  expect_failure(executable, 1, given, 2, refused, "Args size");
  destroy_buffer(argument);
  destroy_executable(executable);
  destroy_client(client);
}

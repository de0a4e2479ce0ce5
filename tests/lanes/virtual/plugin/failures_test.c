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

static PJRT_Buffer *put(PJRT_Client *client, PJRT_Device *device) {
  static const float DATA[] = {1, 2, 3, 4};
  const int64_t count = 4;
  PJRT_Client_BufferFromHostBuffer_Args args = {
      .client = client,
      .data = DATA,
      .type = PJRT_Buffer_Type_F32,
      .dims = &count,
      .num_dims = 1,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = device};
  CALL(PJRT_Client_BufferFromHostBuffer, &args);
  PJRT_Event_Destroy_Args destroy = {.event = args.done_with_host_buffer};
  CALL(PJRT_Event_Destroy, &destroy);
  return args.buffer;
}

// Execute on the devices; expects an error with this text, and that it leaves nothing.
static void expect_failure(PJRT_LoadedExecutable *executable, size_t devices, size_t arguments,
                           PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS], int results_count,
                           Refusal refused, const char *text) {
  PJRT_Buffer *results[DEVICES][MOST_RESULTS], **outputs[DEVICES] = {results[0], results[1]};
  PJRT_Buffer *const *const lists[DEVICES] = {given[0], given[1]};
  PJRT_Event *complete[DEVICES];
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_LoadedExecutable_Execute_Args execute = {.executable = executable,
                                                .options = &options,
                                                .argument_lists = lists,
                                                .num_devices = devices,
                                                .num_args = arguments,
                                                .output_lists = outputs,
                                                .device_complete_events = complete};
  start_counting(results_count, refused);
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &execute,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  const char *reason = text_of(error);
  if (strstr(reason, text) == NULL) fail("expected %s but got %s", text, reason);
  expect_nothing_left();
}

static void become_one_of_two(void) {
  setenv("VIRTUAL_TPU_TOPOLOGY", "1x4", 1);
  setenv("VIRTUAL_TPU_BOUNDS", "4,1,1", 1);
  setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "2,1,1", 1);
}

static PJRT_Device *const *devices_of(PJRT_Client *client) {
  PJRT_Client_AddressableDevices_Args here = {.client = client};
  CALL(PJRT_Client_AddressableDevices, &here);
  EXPECT(here.num_addressable_devices == DEVICES);
  return here.addressable_devices;
}

static PJRT_LoadedExecutable *compile_for_four(PJRT_Client *client, const char *text) {
  PJRT_LoadedExecutable *executable;
  ok(try_compile_with(client, text, FOUR_REPLICAS, sizeof FOUR_REPLICAS, &executable), "compile");
  return executable;
}

// Each device runs it by itself, and the second one's argument has been deleted.
static void run_on_each(int number) {
  (void)number;
  become_one_of_two();
  PJRT_Client *client = create_client();
  PJRT_Device *const *devices = devices_of(client);
  PJRT_LoadedExecutable *executable = compile_for_four(client, DOUBLE);
  PJRT_Buffer *first = put(client, devices[0]), *second = put(client, devices[1]);
  PJRT_Buffer_Delete_Args delete = {.buffer = second};
  CALL(PJRT_Buffer_Delete, &delete);
  PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS] = {{first}, {second}};
  expect_failure(executable, DEVICES, 1, given, 1, (Refusal){0}, "deleted or donated");
  destroy_buffer(first);
  destroy_buffer(second);
  destroy_executable(executable);
  destroy_client(client);
}

TEST(a_device_that_fails_takes_back_what_earlier_ones_have_computed) { as_ranks(run_on_each); }

// out = the sum of all devices' in
#define SUM                                                                           \
  "module @sum { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {"        \
  " %0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):"     \
  " %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> })"     \
  " {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> " \
  "tensor<4xf32> return %0 : tensor<4xf32> } }"

// Both devices are to meet those of the other process, and the second one fails.
static void run_together(int number) {
  (void)number;
  become_one_of_two();
  PJRT_Client *client = create_client();
  PJRT_Device *const *devices = devices_of(client);
  PJRT_LoadedExecutable *executable = compile_for_four(client, SUM);
  PJRT_Buffer *first = put(client, devices[0]), *second = put(client, devices[1]);
  PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS] = {{first}, {second}};
  // Each device is promised its result and its completion. Each waits for its argument, too.
  static const Refusal REFUSED[] = {{"PJRT_Client_CreateAliasBuffer", 2},
                                    {"PJRT_Client_CreateAliasBuffer", 3},
                                    {"PJRT_Buffer_ReadyEvent", 3}};
  for (int i = 0; i < 3; ++i) {
    expect_failure(executable, DEVICES, 1, given, 1, REFUSED[i], "Args size");
  }
  destroy_buffer(first);
  destroy_buffer(second);
  destroy_executable(executable);
  destroy_client(client);
}

TEST(a_device_that_fails_takes_back_what_earlier_ones_were_promised) { as_ranks(run_together); }

// Both results belong in the host's memory.
#define MOVED                                                                    \
  "module @moved { func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32>," \
  " tensor<4xf32>) { %0 = stablehlo.add %a, %a : tensor<4xf32> return %a, %0 :"  \
  " tensor<4xf32>, tensor<4xf32> } } // xla_harness_results:pp;"

TEST(a_result_that_cant_be_moved_takes_back_all) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable = compile_program(client, MOVED);
  PJRT_Buffer *argument = put(client, first_device(client));
  PJRT_Buffer *const given[DEVICES][MOST_ARGUMENTS] = {{argument}};
  const Refusal refused = {"PJRT_Buffer_CopyToMemory", 1};  // that of the second result
  expect_failure(executable, 1, 1, given, 2, refused, "Args size");
  destroy_buffer(argument);
  destroy_executable(executable);
  destroy_client(client);
}

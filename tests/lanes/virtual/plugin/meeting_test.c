// Two processes that run programs over the devices of both, as ranks of one job.
#include <string.h>

#include "caller.h"

// CompileOptionsProto: executable_build_options { num_replicas: 2, num_partitions: 1 }
static const char TWO_REPLICAS[] = {3 << 3 | 2, 4, 4 << 3, 2, 5 << 3, 1};

// out = the sum of both processes' in
#define SUM                                                                                   \
  "module @sum { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {"                \
  " %0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):"             \
  " %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> })"             \
  " {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32> " \
  "return %0 : tensor<4xf32> } }"

static PJRT_LoadedExecutable *compile_sum(PJRT_Client *client) {
  const PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                                .code = SUM,
                                .code_size = sizeof SUM - 1,
                                .format = "mlir",
                                .format_size = 4};
  PJRT_Client_Compile_Args args = {.client = client,
                                   .program = &program,
                                   .compile_options = TWO_REPLICAS,
                                   .compile_options_size = sizeof TWO_REPLICAS};
  CALL(PJRT_Client_Compile, &args);
  return args.executable;
}

static void expect_own(PJRT_Client *client, PJRT_LoadedExecutable *sum, int number) {
  PJRT_Client_AddressableDevices_Args here = {.client = client};
  CALL(PJRT_Client_AddressableDevices, &here);
  EXPECT(here.num_addressable_devices == 1);
  PJRT_LoadedExecutable_AddressableDevices_Args of = {.executable = sum};
  CALL(PJRT_LoadedExecutable_AddressableDevices, &of);
  EXPECT(of.num_addressable_devices == 1);
  EXPECT(of.addressable_devices[0] == here.addressable_devices[0]);
  PJRT_Device_LocalHardwareId_Args local = {.device = here.addressable_devices[0]};
  CALL(PJRT_Device_LocalHardwareId, &local);
  EXPECT(local.local_hardware_id == 0);
  PJRT_Client_ProcessIndex_Args process = {.client = client};
  CALL(PJRT_Client_ProcessIndex, &process);
  EXPECT(process.process_index == number);
}

static void expect_sum(PJRT_Client *client, PJRT_LoadedExecutable *sum, int number) {
  const float in[4] = {1, 2, 3, (float)number};
  float out[4] = {0};
  run(client, sum, PJRT_ExecuteOptions_STRUCT_SIZE, in, out);
  EXPECT(out[0] == 2 && out[1] == 4 && out[2] == 6 && out[3] == 1);
}

static void compute(int number) {
  for (int clients = 0; clients < 2; ++clients) {
    PJRT_Client *client = create_client();
    for (int programs = 0; programs < 2; ++programs) {
      PJRT_LoadedExecutable *sum = compile_sum(client);
      expect_own(client, sum, number);
      for (int i = 0; i < 3; ++i) expect_sum(client, sum, number);
      destroy_executable(sum);
    }
    destroy_client(client);
  }
}

TEST(ranks_meet_and_give_everything_back) { as_ranks(compute); }

static void compute_with_two_clients(int number) {
  PJRT_Client *first = create_client(), *second = create_client();
  PJRT_LoadedExecutable *one = compile_sum(first), *other = compile_sum(second);
  expect_sum(first, one, number);
  expect_sum(second, other, number);
  expect_own(first, one, number);
  expect_own(second, other, number);
  destroy_executable(one);
  destroy_client(first);
  expect_sum(second, other, number);
  destroy_executable(other);
  destroy_client(second);
}

TEST(a_rank_may_have_two_clients) { as_ranks(compute_with_two_clients); }

// The caller hands over too few devices: nothing has been promised, and the next call works.
static void compute_after_a_refusal(int number) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *sum = compile_sum(client);
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_LoadedExecutable_Execute_Args execute = {.executable = sum, .options = &options};
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &execute,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  EXPECT(strstr(text_of(error), "runs a program on 0 devices") != NULL);
  expect_sum(client, sum, number);
  destroy_executable(sum);
  destroy_client(client);
}

TEST(a_refused_execution_leaves_nothing) { as_ranks(compute_after_a_refusal); }

static void give_a_deleted_buffer(int number) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *sum = compile_sum(client);
  const float in[4] = {1, 2, 3, 4};
  PJRT_Buffer *deleted = buffer_of(client, in, 4), *result, **results[] = {&result};
  PJRT_Buffer_Delete_Args delete = {.buffer = deleted};
  CALL(PJRT_Buffer_Delete, &delete);
  PJRT_Buffer *const arguments[] = {deleted}, *const *const lists[] = {arguments};
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_LoadedExecutable_Execute_Args execute = {.executable = sum,
                                                .options = &options,
                                                .argument_lists = lists,
                                                .num_devices = 1,
                                                .num_args = 1,
                                                .output_lists = results};
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &execute,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  EXPECT(strstr(text_of(error), "argument 0: its buffer has been deleted or donated") != NULL);
  destroy_buffer(deleted);
  expect_sum(client, sum, number);
  destroy_executable(sum);
  destroy_client(client);
}

TEST(a_deleted_argument_is_refused_before_anything_is_handed_over) {
  as_ranks(give_a_deleted_buffer);
}

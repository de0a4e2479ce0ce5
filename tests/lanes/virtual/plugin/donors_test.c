// Arguments that a program may take, which are gone only if a result gets their memory.
#include "caller.h"

#define SLICE                                                                            \
  "module @slice { func.func public @main(%a: tensor<4xf32> {jax.buffer_donor = true})"  \
  " -> tensor<2xf32> { %0 = stablehlo.slice %a [1:3] : (tensor<4xf32>) -> tensor<2xf32>" \
  " return %0 : tensor<2xf32> } }"
#define ADD                                                                           \
  "module @add { func.func public @main(%a: tensor<4xf32> {jax.buffer_donor = true})" \
  " -> tensor<4xf32> { %0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> } }"

static const float IN[] = {1, 2, 3, 4};

static int is_deleted(PJRT_Buffer *buffer) {
  PJRT_Buffer_IsDeleted_Args args = {.buffer = buffer};
  CALL(PJRT_Buffer_IsDeleted, &args);
  return args.is_deleted;
}

// Return whether the argument is gone after the execution. The caller may keep it.
static int takes(PJRT_Client *client, PJRT_LoadedExecutable *executable, size_t kept) {
  const int64_t indices[] = {0};
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE,
                                 .non_donatable_input_indices = indices,
                                 .num_non_donatable_input_indices = kept};
  PJRT_Buffer *in = buffer_of(client, IN, 4), *result = execute(executable, &options, in);
  const int gone = is_deleted(in);
  destroy_buffer(result);
  destroy_buffer(in);
  return gone;
}

// As JAX tests it on TPUs, in testBufferDonationNotDonated:
// https://github.com/jax-ml/jax/blob/jax-v0.10.2/tests/pjit_test.py
TEST(a_donated_argument_is_gone_if_a_result_has_its_memory) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *adds = compile_program(client, ADD);
  PJRT_LoadedExecutable *slices = compile_program(client, SLICE);
  EXPECT(takes(client, adds, 0));
  EXPECT(!takes(client, adds, 1));
  EXPECT(!takes(client, slices, 0));
  destroy_executable(adds);
  destroy_executable(slices);
  destroy_client(client);
}

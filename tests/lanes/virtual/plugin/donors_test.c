// Arguments that a program may take though no result gets their memory.
#include "caller.h"

#define SLICE(attribute)                                                                  \
  "module @slice { func.func public @main(%a: tensor<4xf32>" attribute                    \
  ") -> tensor<2xf32> { %0 = stablehlo.slice %a [1:3] : (tensor<4xf32>) -> tensor<2xf32>" \
  " return %0 : tensor<2xf32> } }"

static const float IN[] = {1, 2, 3, 4};

static int is_deleted(PJRT_Buffer *buffer) {
  PJRT_Buffer_IsDeleted_Args args = {.buffer = buffer};
  CALL(PJRT_Buffer_IsDeleted, &args);
  return args.is_deleted;
}

// Whether the argument is gone after the execution, which must have the right result.
static int takes(PJRT_Client *client, PJRT_LoadedExecutable *executable, size_t kept) {
  const int64_t indices[] = {0};
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE,
                                 .non_donatable_input_indices = indices,
                                 .num_non_donatable_input_indices = kept};
  PJRT_Buffer *in = buffer_of(client, IN, 4), *result = execute(executable, &options, in);
  float out[2];
  to_host(result, out, 2);
  EXPECT(out[0] == IN[1] && out[1] == IN[2]);
  const int gone = is_deleted(in);
  destroy_buffer(result);
  destroy_buffer(in);
  return gone;
}

TEST(a_donated_argument_is_gone_though_no_result_has_its_memory) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *donates = compile_program(client, SLICE(" {jax.buffer_donor = true}"));
  PJRT_LoadedExecutable *keeps = compile_program(client, SLICE(""));
  EXPECT(takes(client, donates, 0));
  EXPECT(!takes(client, donates, 1));  // the caller keeps it this time
  EXPECT(!takes(client, keeps, 0));
  destroy_executable(donates);
  destroy_executable(keeps);
  destroy_client(client);
}

TEST(an_executable_that_is_loaded_again_takes_the_same) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *compiled = compile_program(client, SLICE(" {jax.buffer_donor = true}"));
  PJRT_LoadedExecutable_GetExecutable_Args get = {.loaded_executable = compiled};
  CALL(PJRT_LoadedExecutable_GetExecutable, &get);
  PJRT_Executable_Serialize_Args bytes = {.executable = get.executable};
  CALL(PJRT_Executable_Serialize, &bytes);
  PJRT_Executable_DeserializeAndLoad_Args load = {
      .client = client,
      .serialized_executable = bytes.serialized_bytes,
      .serialized_executable_size = bytes.serialized_bytes_size};
  CALL(PJRT_Executable_DeserializeAndLoad, &load);
  bytes.serialized_executable_deleter(bytes.serialized_executable);
  EXPECT(takes(client, load.loaded_executable, 0));
  PJRT_Executable_Destroy_Args destroy = {.executable = get.executable};
  CALL(PJRT_Executable_Destroy, &destroy);
  destroy_executable(load.loaded_executable);
  destroy_executable(compiled);
  destroy_client(client);
}

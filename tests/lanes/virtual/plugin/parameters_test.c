// Arguments that are not what the executable's parameters are, though they have as many bytes.
#include <string.h>

#include "caller.h"

#define SQUARE                                                                        \
  "module @square { func.func public @main(%a: tensor<2x2xf32>) -> tensor<2x2xf32> {" \
  " %0 = stablehlo.add %a, %a : tensor<2x2xf32> return %0 : tensor<2x2xf32> } }"

static const float IN[] = {1, 2, 3, 4};

static PJRT_Buffer *array_of(PJRT_Client *client, PJRT_Buffer_Type type, const int64_t *dimensions,
                             size_t count) {
  PJRT_Client_BufferFromHostBuffer_Args args = {
      .client = client,
      .data = IN,
      .type = type,
      .dims = dimensions,
      .num_dims = count,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = first_device(client)};
  CALL(PJRT_Client_BufferFromHostBuffer, &args);
  ok(event_await(args.done_with_host_buffer), "done_with_host_buffer");
  return args.buffer;
}

// Execute with `count` times the argument, which is destroyed; the result is, too.
static PJRT_Error *execute_with(PJRT_LoadedExecutable *executable, PJRT_Buffer *in, size_t count) {
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer *result = NULL, **results[] = {&result}, *const arguments[] = {in, in};
  PJRT_Buffer *const *const lists[] = {arguments};
  PJRT_LoadedExecutable_Execute_Args args = {.executable = executable,
                                             .options = &options,
                                             .argument_lists = lists,
                                             .num_devices = 1,
                                             .num_args = count,
                                             .output_lists = results};
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &args,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  if (result != NULL) destroy_buffer(result);
  destroy_buffer(in);
  return error;
}

static void expect_refusal(PJRT_Error *error, const char *text) {
  EXPECT(error != NULL && error_code(error) == PJRT_Error_Code_INVALID_ARGUMENT);
  const char *found = text_of(error);
  if (strstr(found, text) == NULL) fail("expected %s in %s", text, found);
}

static void expect_checks(PJRT_Client *client, PJRT_LoadedExecutable *square) {
  static const int64_t ROW[] = {4}, COLUMN[] = {4, 1}, WHOLE[] = {2, 2};
  expect_refusal(execute_with(square, array_of(client, PJRT_Buffer_Type_F32, ROW, 1), 1),
                 "virtual TPU: Executable(square): parameter 0: expected f32[2,2] but got a buffer "
                 "of f32[4]");
  expect_refusal(execute_with(square, array_of(client, PJRT_Buffer_Type_F32, COLUMN, 2), 1),
                 "but got a buffer of f32[4,1]");
  expect_refusal(execute_with(square, array_of(client, PJRT_Buffer_Type_S32, WHOLE, 2), 1),
                 "but got a buffer of s32[2,2]");
  expect_refusal(execute_with(square, array_of(client, PJRT_Buffer_Type_F32, WHOLE, 2), 2),
                 "virtual TPU: Executable(square): expected 1 arguments but got 2");
  ok(execute_with(square, array_of(client, PJRT_Buffer_Type_F32, WHOLE, 2), 1), "execute");
}

TEST(an_argument_has_its_parameters_type_and_dimensions) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *square = compile_program(client, SQUARE);
  expect_checks(client, square);
  destroy_executable(square);
  destroy_client(client);
}

TEST(arguments_are_checked_of_an_executable_that_is_loaded) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *compiled = compile_program(client, SQUARE);
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
  PJRT_Executable_Destroy_Args destroy = {.executable = get.executable};
  CALL(PJRT_Executable_Destroy, &destroy);
  expect_checks(client, load.loaded_executable);
  destroy_executable(load.loaded_executable);
  destroy_executable(compiled);
  destroy_client(client);
}

// With parameter_is_tupled_arguments the program has one parameter, a tuple.
TEST(arguments_in_one_tuple_are_checked_each) {
  static const char TUPLED[] = {2 << 3, 1, 3 << 3 | 2, 4, 4 << 3, 1, 5 << 3, 1};
  PJRT_Client *client = create_client();
  const PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                                .code = SQUARE,
                                .code_size = sizeof SQUARE - 1,
                                .format = "mlir",
                                .format_size = 4};
  PJRT_Client_Compile_Args args = {.client = client,
                                   .program = &program,
                                   .compile_options = TUPLED,
                                   .compile_options_size = sizeof TUPLED};
  CALL(PJRT_Client_Compile, &args);
  expect_checks(client, args.executable);
  destroy_executable(args.executable);
  destroy_client(client);
}

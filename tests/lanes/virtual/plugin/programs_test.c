// Compiling and executing: numbers, and executables that callers share.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "caller.h"

static const float IN[] = {1, -2, 0.5, 4};

static void expect_doubles(PJRT_Client *client, PJRT_LoadedExecutable *executable) {
  float out[4] = {0};
  run(client, executable, PJRT_ExecuteOptions_STRUCT_SIZE, IN, out);
  for (int i = 0; i < 4; ++i) EXPECT(out[i] == 2 * IN[i]);
}

static void delete_executable(PJRT_LoadedExecutable *executable) {
  PJRT_LoadedExecutable_Delete_Args args = {.executable = executable};
  CALL(PJRT_LoadedExecutable_Delete, &args);
}

TEST(equal_programs_are_one_executable_until_the_last_is_destroyed) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *first = compile_program(client, DOUBLE);
  PJRT_LoadedExecutable *second = compile_program(client, DOUBLE);
  EXPECT(first == second);
  destroy_executable(first);
  expect_doubles(client, second);
  destroy_executable(second);
  PJRT_LoadedExecutable *third = compile_program(client, DOUBLE);
  expect_doubles(client, third);
  destroy_executable(third);
  destroy_client(client);
}

TEST(deleting_waits_for_the_other_users) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *first = compile_program(client, DOUBLE);
  PJRT_LoadedExecutable *second = compile_program(client, DOUBLE);
  delete_executable(first);
  expect_doubles(client, second);
  destroy_executable(first);
  delete_executable(second);  // the only user: nobody else gets it from now on
  PJRT_LoadedExecutable *third = compile_program(client, DOUBLE);
  EXPECT(third != second);
  expect_doubles(client, third);
  destroy_executable(third);
  destroy_executable(second);
  destroy_client(client);
}

TEST(other_programs_and_other_clients_have_executables_of_their_own) {
  PJRT_Client *one = create_client(), *other = create_client();
  PJRT_LoadedExecutable *first = compile_program(one, DOUBLE);
  PJRT_LoadedExecutable *second = compile_program(other, DOUBLE);
  EXPECT(first != second);
  static char named_otherwise[sizeof DOUBLE];
  memcpy(named_otherwise, DOUBLE, sizeof DOUBLE);
  *strchr(named_otherwise, 'd') = 't';  // modtle: no program
  PJRT_LoadedExecutable *none;
  EXPECT(strlen(text_of(try_compile(one, named_otherwise, &none))) > 0);
  expect_doubles(one, first);
  destroy_executable(first);
  destroy_client(one);
  expect_doubles(other, second);
  destroy_executable(second);
  destroy_client(other);
}

// What a client leaves behind when it ends is not found by the next one at its address.
TEST(a_client_takes_its_programs_along) {
  PJRT_Client *old = create_client();
  PJRT_LoadedExecutable *left = compile_program(old, DOUBLE);
  destroy_client(old);
  for (int i = 0; i < 100; ++i) {
    PJRT_Client *client = create_client();
    if (client == old) {
      PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE);
      EXPECT(executable != left);
      expect_doubles(client, executable);
      destroy_executable(executable);
      fprintf(stderr, "at the same address\n");
      i = 100;
    }
    destroy_client(client);
  }
}

enum { THREADS = 8 };
typedef struct {
  PJRT_Client *client;
  const char *text;
  PJRT_LoadedExecutable *executable;
  PJRT_Error *error;
} Compilation;
static pthread_barrier_t start;

static void *compile_in_thread(void *of) {
  Compilation *one = of;
  pthread_barrier_wait(&start);
  one->error = try_compile(one->client, one->text, &one->executable);
  return NULL;
}

static void compile_at_once(Compilation *all) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, compile_in_thread, &all[i]);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
}

TEST(threads_share_the_executable_that_one_of_them_compiles) {
  PJRT_Client *client = create_client();
  Compilation all[THREADS];
  for (int i = 0; i < THREADS; ++i) all[i] = (Compilation){.client = client, .text = DOUBLE};
  compile_at_once(all);
  for (int i = 0; i < THREADS; ++i) {
    ok(all[i].error, "PJRT_Client_Compile");
    EXPECT(all[i].executable == all[0].executable);
  }
  expect_doubles(client, all[0].executable);
  for (int i = 0; i < THREADS; ++i) destroy_executable(all[i].executable);
  destroy_client(client);
}

TEST(threads_compile_different_programs_at_once) {
  PJRT_Client *client = create_client();
  Compilation all[THREADS];
  char texts[THREADS][sizeof DOUBLE + 1];
  for (int i = 0; i < THREADS; ++i) {
    memcpy(texts[i], DOUBLE, sizeof DOUBLE);
    memset(texts[i] + strlen("module @"), 'a' + i, 1);
    all[i] = (Compilation){.client = client, .text = texts[i]};
  }
  compile_at_once(all);
  for (int i = 0; i < THREADS; ++i) {
    ok(all[i].error, "PJRT_Client_Compile");
    EXPECT(i == 0 || all[i].executable != all[0].executable);
    expect_doubles(client, all[i].executable);
    destroy_executable(all[i].executable);
  }
  destroy_client(client);
}

TEST(threads_each_hear_that_their_program_is_none) {
  PJRT_Client *client = create_client();
  Compilation all[THREADS];
  for (int i = 0; i < THREADS; ++i) all[i] = (Compilation){.client = client, .text = "no module"};
  compile_at_once(all);
  for (int i = 0; i < THREADS; ++i) {
    EXPECT(strstr(text_of(all[i].error), "no module") == NULL && all[i].executable == NULL);
  }
  destroy_client(client);
}

#define KERNEL                                                                          \
  "module { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> { "              \
  "%0 = stablehlo.custom_call @tpu_custom_call(%a) : (tensor<4xf32>) -> tensor<4xf32> " \
  "return %0 : tensor<4xf32> } }"

TEST(a_kernel_needs_the_python_half) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *none;
  PJRT_Error *error = try_compile(client, KERNEL, &none);
  EXPECT(code_of(error) == PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT(strstr(text_of(error), "no Python half of the plugin to interpret it") != NULL);
  destroy_client(client);
}

#define MANY                                                                                    \
  "module @many { func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, " \
  "tensor<4xf32>) { return %a, %a, %a : tensor<4xf32>, tensor<4xf32>, tensor<4xf32> } }"

static void expect_in_device_memory(PJRT_LoadedExecutable *loaded, size_t count) {
  PJRT_LoadedExecutable_GetExecutable_Args of = {.loaded_executable = loaded};
  CALL(PJRT_LoadedExecutable_GetExecutable, &of);
  PJRT_Executable_OutputMemoryKinds_Args args = {.executable = of.executable};
  CALL(PJRT_Executable_OutputMemoryKinds, &args);
  EXPECT(args.num_outputs == count);
  for (size_t i = 0; i < count; ++i) {
    EXPECT(args.memory_kind_sizes[i] == 6 && memcmp(args.memory_kinds[i], "device", 6) == 0);
  }
  PJRT_Executable_Destroy_Args destroy = {.executable = of.executable};
  CALL(PJRT_Executable_Destroy, &destroy);
}

TEST(every_result_is_in_the_memory_of_its_device) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *one = compile_program(client, DOUBLE);
  PJRT_LoadedExecutable *many = compile_program(client, MANY);
  expect_in_device_memory(one, 1);
  expect_in_device_memory(many, 3);
  destroy_executable(one);
  destroy_executable(many);
  destroy_client(client);
}

TEST(a_note_of_more_results_than_a_program_has_moves_none) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE " // xla_harness_results:pp;");
  float out[4];
  run(client, executable, PJRT_ExecuteOptions_STRUCT_SIZE, IN, out);
  EXPECT(out[3] == 8);
  destroy_executable(executable);
  destroy_client(client);
}

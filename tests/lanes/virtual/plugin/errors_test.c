// What a wrong environment says, and errors of either kind through PJRT's calls.
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "caller.h"

typedef struct {
  const char *name, *value, *expected;
} Wrong;

static const Wrong WRONG[] = {
    {"VIRTUAL_TPU_TOPOLOGY", NULL, "VIRTUAL_TPU_TOPOLOGY=(unset): expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x", "VIRTUAL_TPU_TOPOLOGY=2x: expected SLICESxDEVICES, as 2x4"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x4x", "VIRTUAL_TPU_TOPOLOGY=2x4x: expected"},
    {"VIRTUAL_TPU_TOPOLOGY", "0x4", "VIRTUAL_TPU_TOPOLOGY=0x4: expected"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x-4", "VIRTUAL_TPU_TOPOLOGY=2x-4: expected"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x4096", "VIRTUAL_TPU_TOPOLOGY=2x4096: expected"},
    {"VIRTUAL_TPU_TOPOLOGY", "99999999999x4", "VIRTUAL_TPU_TOPOLOGY=99999999999x4: expected"},
    {"VIRTUAL_TPU_BOUNDS", NULL, "VIRTUAL_TPU_BOUNDS=(unset): expected X,Y,Z"},
    {"VIRTUAL_TPU_BOUNDS", "2,2", "VIRTUAL_TPU_BOUNDS=2,2: expected"},
    {"VIRTUAL_TPU_BOUNDS", "2,2,2", "VIRTUAL_TPU_BOUNDS=2,2,2: expected"},
    {"VIRTUAL_TPU_BOUNDS", "-2,-2,1", "VIRTUAL_TPU_BOUNDS=-2,-2,1: expected"},
    {"VIRTUAL_TPU_KIND", "", "VIRTUAL_TPU_KIND=(unset): expected a device kind"},
    {"VIRTUAL_TPU_PLATFORM", NULL, "VIRTUAL_TPU_PLATFORM=(unset): expected a platform version"},
    {"VIRTUAL_TPU_NAME", NULL, "VIRTUAL_TPU_NAME=(unset): expected a platform's name, as tpu"},
    {"VIRTUAL_TPU_MEMORY", "32GiB", "VIRTUAL_TPU_MEMORY=32GiB: expected GiB of a device, as 32"},
    {"MEGASCALE_NUM_SLICES", "3", "MEGASCALE_NUM_SLICES=3, but VIRTUAL_TPU_TOPOLOGY=2x4 has 2"},
};

TEST(a_wrong_environment_is_named_until_it_is_right) {
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; ++i) {
    const Wrong wrong = WRONG[i];
    const char *given = getenv(wrong.name);
    char *right = given == NULL ? NULL : strdup(given);
    if (wrong.value == NULL) {
      unsetenv(wrong.name);
    } else {
      setenv(wrong.name, wrong.value, 1);
    }
    PJRT_Client_Create_Args args = {0};
    PJRT_Error *error = CALL_SIZED(PJRT_Client_Create, &args, PJRT_Client_Create_Args_STRUCT_SIZE);
    if (error == NULL) fail("%s=%s was taken", wrong.name, wrong.value);
    EXPECT(code_of(error) == PJRT_Error_Code_INVALID_ARGUMENT);
    const char *text = text_of(error);
    if (strstr(text, wrong.expected) == NULL) fail("%s: got %s", wrong.expected, text);
    if (right != NULL) setenv(wrong.name, right, 1);
    free(right);
  }
  destroy_client(create_client());
}

TEST(errors_of_the_backend_keep_their_code_and_text) {
  PJRT_Client *client = create_client();
  PJRT_Client_LookupDevice_Args args = {
      .struct_size = PJRT_Client_LookupDevice_Args_STRUCT_SIZE, .client = client, .id = 99};
  PJRT_Error *error = backend->PJRT_Client_LookupDevice(&args);
  const PJRT_Error_Code code = code_of(error);
  char expected[1024];
  snprintf(expected, sizeof expected, "%s", text_of(error));
  error = api->PJRT_Client_LookupDevice(&args);
  EXPECT(code == code_of(error) && code != 0);
  EXPECT(strcmp(expected, text_of(error)) == 0 && strlen(expected) > 0);
  destroy_client(client);
}

// For a run with VIRTUAL_TPU_BACKEND naming nothing that can be loaded; EXPECTED is why.
TEST(without_a_backend_every_entry_says_why) {
  const char *expected = getenv("EXPECTED");
  if (expected == NULL) return;
#define ENTRY(call, ...)                                              \
  if (strncmp(#call, "PJRT_Error_", 11) != 0) {                       \
    call##_Args args = {.struct_size = call##_Args_STRUCT_SIZE};      \
    PJRT_Error *error = api->call(&args);                             \
    EXPECT(code_of(error) == PJRT_Error_Code_FAILED_PRECONDITION);    \
    const char *text = text_of(error);                                \
    EXPECT(strstr(text, "virtual TPU: VIRTUAL_TPU_BACKEND") != NULL); \
    if (strstr(text, expected) == NULL) fail("%s: %s", #call, text);  \
  }
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT
}

static void *get_the_table(void *unused) {
  (void)unused;
  return (void *)GetPjrtApi();
}

TEST(threads_get_one_table) {
  pthread_t threads[8];
  for (int i = 0; i < 8; ++i) pthread_create(&threads[i], NULL, get_the_table, NULL);
  for (int i = 0; i < 8; ++i) {
    void *table;
    pthread_join(threads[i], &table);
    EXPECT(table == (void *)api);
  }
}

// TorchTPU asks for calls of later headers by their place behind our table, where NULL is "absent".
TEST(calls_of_later_headers_are_absent) {
  EXPECT(api->struct_size == PJRT_Api_STRUCT_SIZE);
  void *const *later = (void *const *)((const char *)api + PJRT_Api_STRUCT_SIZE);
  for (int i = 0; i < 64; ++i) EXPECT(later[i] == NULL);
}

// What FAULT names, for a run that shows that the sanitizers see it.
TEST(a_fault_is_seen) {
  const char *wanted = getenv("FAULT");
  if (wanted == NULL) return;
  if (strcmp(wanted, "memory") == 0) allocate(2, SIZE_MAX, "a test");
  char *volatile room = malloc(8);
  volatile int most = INT_MAX;
  if (strcmp(wanted, "overflow") == 0) room[strlen(wanted)] = 0;
  if (strcmp(wanted, "undefined") == 0) most = most + 1;
  if (strcmp(wanted, "leak") != 0) free(room);
  room = NULL;
}

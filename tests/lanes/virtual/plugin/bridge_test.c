// Callers whose structs have another size than this header's.
//
// Every entry has its trampoline, and no backend can be asked all of them with made-up arguments:
// the first tests put a function behind them that records what arrives. The others ask the real
// backend.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "caller.h"

enum { MOST_BYTES = 4096 };
static unsigned char arrived[MOST_BYTES];
static size_t arrived_size;
static PJRT_Error *const ANSWER = (PJRT_Error *)arrived;

static PJRT_Error *record(void *args) {
  memcpy(&arrived_size, args, sizeof arrived_size);
  EXPECT(arrived_size <= MOST_BYTES);
  memcpy(arrived, args, arrived_size);
  memset((char *)args + sizeof arrived_size, 0xAB, arrived_size - sizeof arrived_size);
  return ANSWER;
}

typedef struct {
  const char *call;
  size_t place, size, ends[32];
} Entry;

static const Entry ENTRIES[] = {
#define ENTRY(call, ...) {#call, offsetof(PJRT_Api, call), call##_Args_STRUCT_SIZE, {__VA_ARGS__}},
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT
};
enum { COUNT = sizeof ENTRIES / sizeof *ENTRIES };
static PJRT_Api front;

static void put_recorder_behind(void) {
  static PJRT_Api table;
#define ENTRY(call, ...) table.call = (call *)record;
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT
  backend = &table;
  front = (PJRT_Api){SIZED(PJRT_Api)};
  bridge_fill(&front);
  bridge_front(&front);
}

// Return what stands in front of an entry; NULL for two that no backend is asked.
static PJRT_Error *(*in_front_of(const Entry *entry))(void *) {
  const size_t own[] = {offsetof(PJRT_Api, PJRT_Plugin_Attributes),
                        offsetof(PJRT_Api, PJRT_Error_GetCode)};
  if (entry->place == own[0] || entry->place == own[1]) return NULL;
  return *(PJRT_Error * (**)(void *))((char *)&front + entry->place);
}

// Call with `size` bytes of 0x11 behind the size; the struct as it came back.
static const unsigned char *call_with(const Entry *entry, size_t size, PJRT_Error *expected) {
  static unsigned char args[MOST_BYTES + 64];
  memset(args, 0x11, sizeof args);
  arrived_size = 0;
  PJRT_Error *error = call_sized(in_front_of(entry), args, sizeof args, size);
  if (expected != NULL && error != expected) fail("%s(%zu): %s", entry->call, size, text_of(error));
  return args;
}

static int all(const unsigned char *bytes, size_t count, unsigned char value) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

TEST(every_entry_takes_every_shorter_struct) {
  put_recorder_behind();
  EXPECT(COUNT > 110);
  for (const Entry *entry = ENTRIES; entry < ENTRIES + COUNT; ++entry) {
    if (in_front_of(entry) == NULL) continue;
    // A caller's struct has at least one field behind its size and its extensions.
    for (const size_t *end = entry->ends + 2; end[-1] != 0 && *end != 0; ++end) {
      const size_t given = *end, head = sizeof given;
      const unsigned char *back = call_with(entry, given, ANSWER);
      if (arrived_size != entry->size) fail("%s: %zu arrived", entry->call, arrived_size);
      EXPECT(all(arrived + head, given - head, 0x11));
      EXPECT(all(arrived + given, entry->size - given, 0));
      EXPECT(memcmp(back, &given, head) == 0);
      EXPECT(all(back + head, given - head, 0xAB));
    }
  }
}

TEST(every_entry_hands_a_longer_struct_on) {
  put_recorder_behind();
  for (const Entry *entry = ENTRIES; entry < ENTRIES + COUNT; ++entry) {
    if (in_front_of(entry) == NULL) continue;
    const unsigned char *back = call_with(entry, entry->size + 64, ANSWER);
    EXPECT(arrived_size == entry->size + 64);
    EXPECT(all(back + sizeof arrived_size, entry->size + 64 - sizeof arrived_size, 0xAB));
  }
}

static int is_end(const Entry *entry, size_t size) {
  for (const size_t *end = entry->ends + 2; end[-1] != 0 && *end != 0; ++end) {
    if (*end == size) return 1;
  }
  return 0;
}

TEST(no_entry_takes_a_struct_that_ends_inside_a_field) {
  put_recorder_behind();
  for (const Entry *entry = ENTRIES; entry < ENTRIES + COUNT; ++entry) {
    if (in_front_of(entry) == NULL) continue;
    for (size_t given = sizeof given; given < entry->size; ++given) {
      if (is_end(entry, given)) continue;
      static unsigned char args[MOST_BYTES];
      PJRT_Error *error = call_sized(in_front_of(entry), args, sizeof args, given);
      if (error == ANSWER) fail("%s took %zu of %zu bytes", entry->call, given, entry->size);
      EXPECT(code_of(error) == PJRT_Error_Code_INVALID_ARGUMENT);
      char expected[256];
      snprintf(expected, sizeof expected,
               "%s was called with a struct of %zu bytes; this plugin's has %zu", entry->call,
               given, entry->size);
      if (strstr(text_of(error), expected) == NULL) fail("%s is not said", expected);
    }
  }
}

TEST(a_client_of_2023_works) {
  PJRT_Client_Create_Args args = {0};
  ok(CALL_SIZED(PJRT_Client_Create, &args, PJRT_STRUCT_SIZE(PJRT_Client_Create_Args, client)),
     "PJRT_Client_Create");
  PJRT_LoadedExecutable *executable = compile_program(args.client, DOUBLE);
  const float in[] = {1, 2, 3, 4};
  const size_t sizes[] = {PJRT_STRUCT_SIZE(PJRT_ExecuteOptions, launch_id),
                          PJRT_STRUCT_SIZE(PJRT_ExecuteOptions, num_non_donatable_input_indices),
                          PJRT_STRUCT_SIZE(PJRT_ExecuteOptions, context),
                          PJRT_STRUCT_SIZE(PJRT_ExecuteOptions, call_location),
                          PJRT_ExecuteOptions_STRUCT_SIZE,
                          PJRT_ExecuteOptions_STRUCT_SIZE + 64};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    float out[4] = {0};
    run(args.client, executable, sizes[i], in, out);
    for (int j = 0; j < 4; ++j) EXPECT(out[j] == 2 * in[j]);
  }
  destroy_executable(executable);
  destroy_client(args.client);
}

TEST(execute_options_that_end_inside_a_field_are_refused) {
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable = compile_program(client, DOUBLE);
  PJRT_ExecuteOptions options = {.struct_size =
                                     PJRT_STRUCT_SIZE(PJRT_ExecuteOptions, launch_id) - 1};
  PJRT_LoadedExecutable_Execute_Args args = {.executable = executable, .options = &options};
  PJRT_Error *error = CALL_SIZED(PJRT_LoadedExecutable_Execute, &args,
                                 PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE);
  EXPECT(code_of(error) == PJRT_Error_Code_INVALID_ARGUMENT);
  const char *expected = "PJRT_ExecuteOptions was called with a struct of 51 bytes";
  EXPECT(strstr(text_of(error), expected) != NULL);
  destroy_executable(executable);
  destroy_client(client);
}

// Headers up to PJRT 0.7x named a size one field short of the struct that they declared.
TEST(plugin_attributes_fills_the_field_that_the_size_left_out) {
  PJRT_Plugin_Attributes_Args args = {
      .struct_size = PJRT_STRUCT_SIZE(PJRT_Plugin_Attributes_Args, attributes)};
  ok(api->PJRT_Plugin_Attributes(&args), "PJRT_Plugin_Attributes");
  EXPECT(args.num_attributes > 0 && args.attributes != NULL);
  EXPECT(args.struct_size == PJRT_STRUCT_SIZE(PJRT_Plugin_Attributes_Args, attributes));
  args.struct_size -= 1;
  EXPECT(strstr(text_of(api->PJRT_Plugin_Attributes(&args)), "PJRT_Plugin_Attributes") != NULL);
}

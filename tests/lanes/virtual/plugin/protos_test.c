// Protos changed on the wire: real ones right, broken ones without a look beyond their end.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "caller.h"

enum { MUTATIONS = 20000 };

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail("%s is missing", path);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char *content = calloc(1, *size + 1);
  EXPECT(fread(content, 1, *size, file) == *size);
  fclose(file);
  return content;
}

static void write_file(const char *path, const char *content, size_t size) {
  FILE *file = fopen(path, "wb");
  fwrite(content, 1, size, file);
  fclose(file);
}

static char *optimized(const PJRT_Api *from, PJRT_Executable *executable, size_t *size) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE};
  PJRT_Executable_OptimizedProgram_Args args = {
      .struct_size = PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE,
      .executable = executable,
      .program = &program};
  ok(from->PJRT_Executable_OptimizedProgram(&args), "PJRT_Executable_OptimizedProgram");
  program.code = malloc(program.code_size);
  ok(from->PJRT_Executable_OptimizedProgram(&args), "PJRT_Executable_OptimizedProgram");
  EXPECT(strncmp(program.format, "hlo_with_config", program.format_size) == 0);
  *size = program.code_size;
  return program.code;
}

typedef struct {
  char *before, *after;  // as the backend gives it, and as the plugin does
  size_t size;
} Optimized;

static Optimized compile_file(const char *path) {
  size_t size;
  char *text = read_file(path, &size);
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *loaded = compile_program(client, text);
  PJRT_LoadedExecutable_GetExecutable_Args of = {.loaded_executable = loaded};
  CALL(PJRT_LoadedExecutable_GetExecutable, &of);
  Optimized both = {.before = optimized(backend, of.executable, &both.size)};
  both.after = optimized(api, of.executable, &size);
  EXPECT(size == both.size);
  PJRT_Executable_Destroy_Args destroy = {.executable = of.executable};
  CALL(PJRT_Executable_Destroy, &destroy);
  destroy_executable(loaded);
  destroy_client(client);
  free(text);
  return both;
}

// Leaves before.pb and after.pb for the test in Python.
TEST(an_optimized_program_gets_small_ids) {
  const Optimized both = compile_file("large.mlir");
  write_file("before.pb", both.before, both.size);
  write_file("after.pb", both.after, both.size);
  free(both.before);
  free(both.after);
}

static uint32_t next_random(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

// What goes before all options, so that programs compile fast.
#define LEVEL "\x3a\x24\x0a\x1exla_backend_optimization_level\x12\x02\x18\x00"
#define EMITTERS "\x3a\x21\x0a\x1bxla_cpu_use_fusion_emitters\x12\x02\x10\x00"
#define SPLIT "\x3a\x2a\x0a\x24xla_cpu_parallel_codegen_split_count\x12\x02\x18\x01"
#define LIBRARY "\x3a\x2a\x0a\x24xla_cpu_experimental_ynn_fusion_type\x12\x02\x0a\x00"
static const char QUICK[] = LEVEL EMITTERS SPLIT LIBRARY;
enum { QUICK_SIZE = sizeof QUICK - 1 };

static void renumber(const char *program, size_t size) {
  for (int with_config = 0; with_config < 2; ++with_config) {
    char *own = malloc(size + (size == 0));
    memcpy(own, program, size);
    renumber_instructions(own, size, with_config);
    free(own);
  }
}

static const PJRT_Program PLAIN = {.code = "module", .code_size = 6};
static const char *names[8];
static size_t names_count, names_size;

static void take_name(const char *name, size_t size, const void *context) {
  (void)context;
  names_size += size;
  if (names_count < 8) names[names_count++] = name;
}

static void complete(const char *options, size_t size) {
  char *own = malloc(size + (size == 0));
  memcpy(own, options, size);
  size_t completed = size;
  char *made = options_completed(own, &PLAIN, 0, &completed);
  EXPECT(completed >= QUICK_SIZE && completed <= QUICK_SIZE + size);
  free(made);
  names_size = names_count = 0;
  options_ignored(own, size, take_name, NULL);
  error_drop(options_refused(own, size));
  free(own);
}

static void break_in_all_ways(const char *proto, size_t size, void (*use)(const char *, size_t)) {
  for (size_t end = 0; end <= size; end += 1 + size / 2000) use(proto, end);
  char *broken = malloc(size);
  for (int i = 0; i < MUTATIONS; ++i) {
    memcpy(broken, proto, size);
    for (uint32_t n = 1 + next_random() % 4; n > 0; --n) {
      const uint32_t at = next_random() % size, kind = next_random() % 3;
      broken[at] = (char)(kind == 0   ? 0xFF
                          : kind == 1 ? broken[at] ^ 1 << next_random() % 8
                                      : (int)next_random());
    }
    use(broken, size - next_random() % 2);
  }
  free(broken);
}

TEST(broken_programs_are_not_read_beyond_their_end) {
  const Optimized both = compile_file("small.mlir");
  break_in_all_ways(both.before, both.size, renumber);
  free(both.before);
  free(both.after);
}

TEST(broken_options_are_not_read_beyond_their_end) {
  size_t size;
  char *options = read_file("options.pb", &size);
  break_in_all_ways(options, size, complete);
  free(options);
}

// They come first, where the caller's own replace them.
TEST(quick_options_come_before_the_callers) {
  static const char GIVEN[] = {26, 5, 26, 3, 0x50, 1, 0x18};
  size_t size = sizeof GIVEN;
  char *made = options_completed(GIVEN, &PLAIN, 0, &size);
  EXPECT(size == QUICK_SIZE + sizeof GIVEN);
  EXPECT(memcmp(made, QUICK, QUICK_SIZE) == 0);
  EXPECT(memcmp(made + QUICK_SIZE, GIVEN, sizeof GIVEN) == 0);
  free(made);
}

// So they are added to the caller's, whose arguments have no layouts.
TEST(options_that_a_program_notes_come_last) {
  static const char GIVEN[] = {26, 5, 26, 3, 0x50, 1, 0x18}, NOTED[] = {10, 2, 16, 11};
  char code[] = "..xla_harness_options:0a02100B;..";
  const PJRT_Program program = {.code = code, .code_size = sizeof code - 1};
  size_t size = sizeof GIVEN;
  char *made = options_completed(GIVEN, &program, 0, &size);
  EXPECT(size == QUICK_SIZE + sizeof GIVEN + sizeof NOTED);
  EXPECT(memcmp(made + size - sizeof NOTED, NOTED, sizeof NOTED) == 0);
  free(made);
}

// In debug options that do not know xla_cpu_parallel_codegen_split_count it is 0, which XLA
// refuses.
TEST(a_program_of_an_old_caller_compiles) {
  static const char OLD[] = {26, 8, 26, 2, 0x50, 1, 32, 1, 40, 1};
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable;
  ok(try_compile_with(client, DOUBLE, OLD, sizeof OLD, &executable), "PJRT_Client_Compile");
  destroy_executable(executable);
  setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1", 1);  // so no override says it
  text_of(try_compile_with(client, DOUBLE, OLD, sizeof OLD, &executable));
  destroy_client(client);
}

// Of the library fusions that newer frameworks ask of a CPU some are unknown to this XLA, which
// would write a line about each of them for every program.
TEST(a_program_of_a_new_caller_compiles_without_a_word) {
  static const char NEW[] = {26, 12, 26, 6, (char)0xb2, 0x1a, 3, 4, 5, 3, 32, 1, 40, 1};
  PJRT_Client *client = create_client();
  PJRT_LoadedExecutable *executable;
  const int usual = dup(STDERR_FILENO);
  const int log = open("log.txt", O_CREAT | O_TRUNC | O_WRONLY, 0600);
  EXPECT(usual >= 0 && log >= 0 && dup2(log, STDERR_FILENO) == STDERR_FILENO);
  ok(try_compile_with(client, DOUBLE, NEW, sizeof NEW, &executable), "PJRT_Client_Compile");
  EXPECT(dup2(usual, STDERR_FILENO) == STDERR_FILENO);
  close(usual);
  close(log);
  size_t size;
  char *text = read_file("log.txt", &size);
  if (strstr(text, "fusion") != NULL) fail("the compiler wrote: %s", text);
  free(text);
  destroy_executable(executable);
  destroy_client(client);
}

// Who names one in XLA_FLAGS has it in the options that the framework makes.
TEST(an_option_of_the_user_stays) {
  static const char GIVEN[] = {26, 2, 32, 1}, OTHERS[] = LEVEL SPLIT LIBRARY;
  enum { OTHERS_SIZE = sizeof OTHERS - 1 };
  setenv("XLA_FLAGS", "--a=b --xla_cpu_use_fusion_emitters=true", 1);
  size_t size = sizeof GIVEN;
  char *made = options_completed(GIVEN, &PLAIN, 0, &size);
  EXPECT(size == OTHERS_SIZE + sizeof GIVEN);
  EXPECT(memcmp(made, OTHERS, OTHERS_SIZE) == 0);
  EXPECT(memcmp(made + OTHERS_SIZE, GIVEN, sizeof GIVEN) == 0);
  free(made);
}

// Where a program needs the emitters of MLIR, the option that turns them off is left out.
TEST(emitters_are_left_on_where_a_program_needs_them) {
  size_t size = 0;
  char *made = options_completed("", &PLAIN, 1, &size);
  EXPECT(size > 0 && size < QUICK_SIZE);
  EXPECT(memmem(made, size, "xla_cpu_use_fusion_emitters", 27) == NULL);
  free(made);
}

// Overrides of the TPU compiler's own options go, all else stays.
TEST(options_of_the_tpu_compiler_are_left_out) {
#define OVERRIDE(size, key_size, key) "\x3a" size "\x0a" key_size key "\x12\x02\x18\x01"
#define KEPT "\x1a\x02\x20\x01" OVERRIDE("\x0d", "\x07", "xla_cpu")
  static const char GIVEN[] =
      OVERRIDE("\x0f", "\x09", "xla_tpu_a") KEPT OVERRIDE("\x10", "\x0a", "xla_tpu_bc");
  size_t size = sizeof GIVEN - 1;
  char *made = options_completed(GIVEN, &PLAIN, 0, &size);
  EXPECT(size == QUICK_SIZE + sizeof KEPT - 1);
  EXPECT(memcmp(made + QUICK_SIZE, KEPT, sizeof KEPT - 1) == 0);
  free(made);
}

// One instruction in all places that name it; each keeps its five bytes.
TEST(every_field_with_an_id_is_renumbered) {
#define WIDE "\x81\x80\x80\x80\x10"  // 2^32 + 1
#define SMALL "\x81\x80\x80\x80\x00"
#define MODULE(id) "\x1a\x1f\x12\x17\x98\x02" id "\xa2\x02\x05" id "\xaa\x02\x05" id "\x30" id
  static const char GIVEN[] = MODULE(WIDE), EXPECTED[] = MODULE(SMALL);
  char *program = malloc(sizeof GIVEN - 1);
  memcpy(program, GIVEN, sizeof GIVEN - 1);
  renumber_instructions(program, sizeof GIVEN - 1, 0);
  EXPECT(memcmp(program, EXPECTED, sizeof EXPECTED - 1) == 0);
  free(program);
}

// Ids that fit stay, and no wide one gets the number of one of them.
TEST(narrow_ids_stay) {
  static const char GIVEN[] = "\x1a\x0f\x12\x04\x98\x02\x81\x01\x12\x07\x98\x02" WIDE;
  static const char EXPECTED[] =
      "\x1a\x0f\x12\x04\x98\x02\x81\x01\x12\x07\x98\x02\x82\x81\x80\x80\x00";
  char *program = malloc(sizeof GIVEN - 1);
  memcpy(program, GIVEN, sizeof GIVEN - 1);
  renumber_instructions(program, sizeof GIVEN - 1, 0);
  EXPECT(memcmp(program, EXPECTED, sizeof EXPECTED - 1) == 0);
  free(program);
}

static char entry[] = {58, 14, 10, 9, 'x', 'l', 'a', '_', 't', 'p', 'u', '_', 'a', 18, 1, 0};

// Options of the TPU's own compiler are named and left out; the others stay.
TEST(options_of_the_tpus_compiler_are_named) {
  static const char OTHER[] = {58, 11, 10, 9, 'x', 'l', 'a', '_', 'c', 'p', 'u', '_', 'a'};
  char options[sizeof OTHER + 2 * sizeof entry];
  memcpy(options, entry, sizeof entry);
  memcpy(options + sizeof entry, OTHER, sizeof OTHER);
  entry[12] = 'b';
  memcpy(options + sizeof entry + sizeof OTHER, entry, sizeof entry);
  options_ignored(options, sizeof options, take_name, NULL);
  EXPECT(names_count == 2 && names_size == 18);
  EXPECT(memcmp(names[0], "xla_tpu_a", 9) == 0 && memcmp(names[1], "xla_tpu_b", 9) == 0);
  size_t size = sizeof options;
  char *made = options_completed(options, &PLAIN, 0, &size);
  EXPECT(size == QUICK_SIZE + sizeof OTHER);
  EXPECT(memcmp(made + QUICK_SIZE, OTHER, sizeof OTHER) == 0);
  free(made);
}

// Of the build options: what only a TPU heeds is named; sharding by itself is refused.
TEST(build_options_without_effect_are_named_or_refused) {
  // num_replicas: 1, use_auto_spmd_partitioning: false, fdo_profile: "x", the usual
  // memory_fitting_level, exec_time_optimization_effort: 0.5
  static const char BUILD[] = {3 << 3 | 2,
                               16,
                               4 << 3,
                               1,
                               7 << 3,
                               0,
                               14 << 3 | 2,
                               1,
                               'x',
                               (char)(25 << 3 | 0x80),
                               1,
                               29,
                               (char)(20 << 3 | 5 | 0x80),
                               1,
                               0,
                               0,
                               0,
                               63};
  static const char AUTO[] = {3 << 3 | 2, 2, 7 << 3, 1};
  options_ignored(BUILD, sizeof BUILD, take_name, NULL);
  EXPECT(names_count == 2);
  EXPECT(strcmp(names[0], "fdo_profile") == 0);
  EXPECT(strcmp(names[1], "exec_time_optimization_effort") == 0);
  EXPECT(options_refused(BUILD, sizeof BUILD) == NULL);
  PJRT_Error *error = options_refused(AUTO, sizeof AUTO);
  EXPECT(error != NULL &&
         strstr(text_of(error), "virtual TPU: the program is to be sharded") != NULL);
}

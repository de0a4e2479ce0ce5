#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// The options of a compilation, a serialised CompileOptionsProto. Its fields and their numbers are
// those of xla/pjrt/proto/compile_options.proto.
enum { BUILD = 3, MULTI_SLICE = 6, OVERRIDES = 7 };
// Of its executable_build_options. A framework that has no say in it sends a fitting level, too.
enum { DEBUG = 3, AUTO_SPMD = 7, FITTING_LEVEL = 25, USUAL_FITTING_LEVEL = 29 };

// Those that a TPU's compiler heeds and the CPU's does not. Not device_memory_size, which no user
// gives: it is what the device has said of itself.
static const struct {
  unsigned number;
  const char *name;
} IGNORED[] = {
    {14, "fdo_profile"},
    {20, "exec_time_optimization_effort"},
    {21, "memory_fitting_effort"},
    {24, "optimization_level"},
    {FITTING_LEVEL, "memory_fitting_level"},
};
enum { IGNORED_COUNT = sizeof IGNORED / sizeof *IGNORED };

// How the names of options begin that have no effect on a CPU: libtpu's own, which the CPU's
// compiler refuses, and those for GPUs, of which it refuses the newest.
static const char *const OF_DEVICES[] = {"xla_gpu_",
                                         "xla_tpu_",
                                         "xla_jf_",
                                         "xla_sc_",
                                         "xla_msa_",
                                         "xla_vf_",
                                         "xla_gf_",
                                         "xla_zf_",
                                         "xla_mosaic_",
                                         "xla_lhs_",
                                         "xla_ior_",
                                         "xla_sparse_core_",
                                         "xla_enable_async_",
                                         "xla_max_concurrent_",
                                         "xla_latency_hiding_scheduler_",
                                         "megascale_"};
enum { OF_DEVICES_COUNT = sizeof OF_DEVICES / sizeof *OF_DEVICES };

// Find the name of an option override, an entry of a map; NULL, and no size, if it has none.
static const char *name_of(const Field *entry, size_t *size) {
  unsigned char *end, *name = find_field(entry->value, entry->end, 1, &end);
  *size = name == NULL ? 0 : (size_t)(end - name);
  return (const char *)name;
}

// Return whether an entry of the option overrides names an option of a device's compiler.
static int is_of_device(const Field *entry) {
  size_t size;
  const char *name = name_of(entry, &size);
  for (size_t i = 0; name != NULL && i < OF_DEVICES_COUNT; ++i) {
    const size_t length = strlen(OF_DEVICES[i]);
    if (size >= length && memcmp(name, OF_DEVICES[i], length) == 0) return 1;
  }
  return 0;
}

static void note_of_build(const Field *build, OptionNote note, const void *context) {
  unsigned char *at = build->value;
  for (Field field; next_field(&at, build->end, &field);) {
    if (field.number == FITTING_LEVEL && field.integer == USUAL_FITTING_LEVEL) continue;
    for (size_t i = 0; i < IGNORED_COUNT; ++i) {
      if (IGNORED[i].number == field.number)
        note(IGNORED[i].name, strlen(IGNORED[i].name), context);
    }
  }
}

void options_ignored(const char *options, size_t size, OptionNote note, const void *context) {
  static const char SLICES[] = "serialized_multi_slice_config";
  unsigned char *at = (unsigned char *)options, *end = at + size;
  for (Field field; next_field(&at, end, &field);) {
    if (field.number == BUILD) note_of_build(&field, note, context);
    if (field.number == MULTI_SLICE) note(SLICES, sizeof SLICES - 1, context);
    if (field.number == OVERRIDES && is_of_device(&field)) {
      size_t name_size;
      const char *name = name_of(&field, &name_size);
      note(name, name_size, context);
    }
  }
}

PJRT_Error *options_refused(const char *options, size_t size) {
  unsigned char *end = (unsigned char *)options + size;
  unsigned char *at = find_field((unsigned char *)options, end, BUILD, &end);
  if (at == NULL || (at = find_field(at, end, AUTO_SPMD, &end)) == NULL) return NULL;
  if (read_varint(&at, end) == 0) return NULL;
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "the program is to be sharded automatically "
                   "(use_auto_spmd_partitioning, in torch_xla xr.use_spmd(auto=True)): XLA's CPU "
                   "compiler can't, and would shard nothing. Annotate the shardings, or test this "
                   "on a %s",
                   platform_title());
}

// Copy the options without those of a device's compiler.
static size_t copy_of_cpu(char *copy, const char *options, size_t size) {
  unsigned char *at = (unsigned char *)options, *end = at + size, *first = at;
  size_t copied = 0;
  for (Field field; next_field(&at, end, &field); first = at) {
    if (field.number == OVERRIDES && is_of_device(&field)) continue;
    memcpy(copy + copied, first, (size_t)(at - first));
    copied += (size_t)(at - first);
  }
  memcpy(copy + copied, first,
         (size_t)(end - first));  // what is no field is the compiler's to refuse
  return copied + (size_t)(end - first);
}

// What compiles fastest, as most programs run once: LLVM does not optimize, fusions are emitted
// without MLIR, a program is one module of LLVM's, and no fusion is handed to a library. The split
// count is 0, which XLA refuses, in debug options of a framework that does not know it; and the
// library fusions that a newer framework asks for are not all known to this XLA, which would log an
// error about them for each program.
typedef struct {
  const char *name;
  unsigned char type, value;  // of a text the size, which is 0
} Option;
// The first byte of fields 1, 2 and 3 of OptionOverrideProto.
enum { TEXT = 1 << 3 | 2, BOOLEAN = 2 << 3, INTEGER = 3 << 3 };
static const char EMITTERS[] = "xla_cpu_use_fusion_emitters";
static const Option QUICK[] = {
    {"xla_backend_optimization_level", INTEGER, 0},
    {EMITTERS, BOOLEAN, 0},
    {"xla_cpu_parallel_codegen_split_count", INTEGER, 1},
    {"xla_cpu_experimental_ynn_fusion_type", TEXT, 0},
};
enum { QUICK_COUNT = sizeof QUICK / sizeof *QUICK, QUICK_MOST = 64 };  // bytes of one override

// Write the overrides that go before the caller's own, which replace them. XLA_FLAGS may say
// otherwise.
static size_t write_quick(char *to, int with_emitters) {
  const char *flags = getenv("XLA_FLAGS");
  size_t written = 0;
  for (const Option *option = QUICK; option < QUICK + QUICK_COUNT; ++option) {
    if (flags != NULL && strstr(flags, option->name) != NULL) continue;
    if (with_emitters && strcmp(option->name, EMITTERS) == 0) continue;
    const int length = (int)strlen(option->name);
    // An entry of a map: its key is field 1, its value, a message, field 2.
    written +=
        (size_t)snprintf(to + written, QUICK_MOST, "%c%c\x0a%c%s\x12\x02%c%c", OVERRIDES << 3 | 2,
                         length + 6, length, option->name, option->type, option->value);
  }
  return written;
}

char *options_completed(const char *options, const PJRT_Program *program, int with_emitters,
                        size_t *size) {
  size_t digits = 0;  // hexadecimal ones, see harness/lanes/virtual/noted_layouts.py
  const char *noted = find_note(program->code, program->code_size, "xla_harness_options:", &digits);
  char *completed = allocate(*size + QUICK_COUNT * QUICK_MOST + digits / 2, 1, "options");
  size_t written = write_quick(completed, with_emitters);
  written += copy_of_cpu(completed + written, options, *size);
  for (size_t i = 0; i + 1 < digits; i += 2) {
    completed[written++] = (char)strtoul((char[]){noted[i], noted[i + 1], '\0'}, NULL, 16);
  }
  *size = written;
  return completed;
}

typedef struct {
  unsigned char *at;
  size_t size;
} Piece;

static int compare_fields(const void *first, const void *second) {
  const Piece *left = first, *right = second;
  if (left->size != right->size) return left->size < right->size ? -1 : 1;
  return memcmp(left->at, right->at, left->size);
}

static void sort_run(Piece *fields, size_t count) {
  unsigned char *first = fields[0].at, *copy;
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += fields[i].size;
  if (count < 2) return;
  copy = allocate(size, 1, "compile options");
  qsort(fields, count, sizeof *fields, compare_fields);
  unsigned char *to = copy;
  for (size_t i = 0; i < count; to += fields[i++].size) memcpy(to, fields[i].at, fields[i].size);
  memcpy(first, copy, size);
  free(copy);
}

// Sort each run of fields that have one number and a length, as the entries of a map have.
static void sort_entries(unsigned char *at, unsigned char *end) {
  enum { MOST = 256 };
  Piece run[MOST];
  size_t count = 0;
  unsigned last = 0;
  unsigned char *first = at;
  for (Field field; next_field(&at, end, &field); first = at) {
    if (count > 0 && (field.wire != BYTES || field.number != last || count == MOST)) {
      sort_run(run, count);
      count = 0;
    }
    last = field.number;
    if (field.wire == BYTES) run[count++] = (Piece){.at = first, .size = (size_t)(at - first)};
  }
  if (count > 0) sort_run(run, count);
}

char *options_sorted(const char *options, size_t size) {
  char *copy = allocate(size, 1, "compile options");
  memcpy(copy, options, size);
  unsigned char *at = (unsigned char *)copy, *end = at + size;
  sort_entries(at, end);
  if ((at = find_field(at, end, BUILD, &end)) == NULL) return copy;
  if ((at = find_field(at, end, DEBUG, &end)) != NULL) sort_entries(at, end);
  return copy;
}

VIRTUAL_TPU_EXPORT char *virtual_tpu_sorted_options(const char *options, size_t size) {
  return options_sorted(options, size);
}

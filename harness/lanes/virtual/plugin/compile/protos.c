#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// Serialised protos that older and newer XLA read differently, changed on the wire: the fields and
// their numbers are those of xla/service/hlo.proto, xla/xla.proto and compile_options.proto.

// XLA of 2025 makes an instruction's unique id of its computation's id and its own, 64 bits wide;
// older XLA refuses ids above INT_MAX. The caller has asked for the program's size before it asks
// for the program, so each of those is replaced in the bytes that it had, five at least: a varint
// may have leading zeros. Narrower ids, as in a computation whose id is 0, stay what they are.

typedef struct {
  uint64_t *from;
  uint32_t *to;  // 0 is an empty slot
  size_t slots, used;
  uint64_t narrow;  // the highest id that fits, known after a first walk
  int replacing;    // the second one
} Ids;

typedef enum {
  WITH_CONFIG,
  MODULE,
  COMPUTATION,
  INSTRUCTION,
  SCHEDULE,
  ENTRY,
  SEQUENCE,
  NONE
} Kind;

static size_t slot_of(const Ids *ids, uint64_t id) {
  size_t slot = (size_t)(id * 0x9E3779B97F4A7C15u >> 20) % ids->slots;
  while (ids->to[slot] != 0 && ids->from[slot] != id) slot = (slot + 1) % ids->slots;
  return slot;
}

static void grow(Ids *ids) {
  const Ids old = *ids;
  ids->slots = old.slots == 0 ? 1024 : 2 * old.slots;
  ids->from = allocate(ids->slots, sizeof *ids->from, "instructions' ids");
  ids->to = allocate(ids->slots, sizeof *ids->to, "instructions' ids");
  for (size_t i = 0; i < old.slots; ++i) {
    if (old.to[i] == 0) continue;
    const size_t slot = slot_of(ids, old.from[i]);
    ids->from[slot] = old.from[i];
    ids->to[slot] = old.to[i];
  }
  free(old.from);
  free(old.to);
}

// Return the small id of a wide one; they count up in the order in which they are met.
static uint32_t small(Ids *ids, uint64_t id) {
  if (2 * (ids->used + 1) > ids->slots) grow(ids);
  const size_t slot = slot_of(ids, id);
  if (ids->to[slot] == 0) {
    ids->from[slot] = id;
    ids->to[slot] = (uint32_t)(ids->narrow + ++ids->used);
  }
  return ids->to[slot];
}

static void replace(unsigned char **at, const unsigned char *end, Ids *ids) {
  unsigned char *first = *at;
  uint64_t id = read_varint(at, end);
  if (id <= INT32_MAX) {
    if (id > ids->narrow) ids->narrow = id;
    return;
  }
  if (!ids->replacing) return;
  id = small(ids, id);
  for (unsigned char *byte = first; byte < *at; ++byte, id >>= 7) {
    *byte = (unsigned char)((id & 0x7F) | (byte + 1 < *at ? 0x80 : 0));
  }
}

static int is_id(Kind kind, unsigned field) {
  switch (kind) {
    case INSTRUCTION:
      return field >= 35 && field <= 37;  // id, operand_ids, control_predecessor_ids
    case COMPUTATION:
      return field == 6;  // root_id
    case SEQUENCE:
      return field == 1;  // instruction_ids
    default:
      return 0;
  }
}

static Kind inside(Kind kind, unsigned field) {
  if (kind == WITH_CONFIG && field == 1) return MODULE;
  if (kind == MODULE && field == 3) return COMPUTATION;
  if (kind == MODULE && field == 7) return SCHEDULE;
  if (kind == COMPUTATION && field == 2) return INSTRUCTION;
  if (kind == SCHEDULE && field == 1) return ENTRY;
  if (kind == ENTRY && field == 2) return SEQUENCE;
  return NONE;
}

static void walk(unsigned char *at, unsigned char *end, Kind kind, Ids *ids) {
  for (Field field; next_field(&at, end, &field);) {
    if (is_id(kind, field.number)) {  // one, or several that are packed
      while (field.value < field.end) replace(&field.value, field.end, ids);
    } else if (field.wire == BYTES && inside(kind, field.number) != NONE) {
      walk(field.value, field.end, inside(kind, field.number), ids);
    }
  }
}

void renumber_instructions(char *program, size_t size, int with_config) {
  Ids ids = {0};
  unsigned char *first = (unsigned char *)program;
  const Kind kind = with_config ? WITH_CONFIG : MODULE;
  walk(first, first + size, kind, &ids);
  ids.replacing = 1;
  walk(first, first + size, kind, &ids);
  free(ids.from);
  free(ids.to);
}

// Which parameter an entry of an alias configuration names. With its arguments in one tuple the
// program has one parameter, and the index within the tuple counts.
static int64_t named_parameter(unsigned char *at, unsigned char *end) {
  enum { NUMBER = 2, INDEX = 3 };
  unsigned char *inner_end, *inner = find_field(at, end, INDEX, &inner_end);
  if (inner != NULL && inner < inner_end) return (int64_t)read_varint(&inner, inner_end);
  inner = find_field(at, end, NUMBER, &inner_end);
  return inner == NULL ? 0 : (int64_t)read_varint(&inner, end);
}

enum { MODULE_FIELD = 1, ALIASES = 8 };

unsigned char *find_module(const char *program, size_t size, int with_config, unsigned char **end) {
  unsigned char *at = (unsigned char *)program;
  *end = at + size;
  return with_config ? find_field(at, *end, MODULE_FIELD, end) : at;
}

int64_t *donated_by_module(const char *program, size_t size, int with_config, size_t *count) {
  unsigned char *end, *at = find_module(program, size, with_config, &end), *part;
  int64_t *parameters = NULL;
  *count = 0;
  if (at == NULL || (part = find_field(at, end, ALIASES, &end)) == NULL) return NULL;
  for (Field entry; next_field(&part, end, &entry);) {
    parameters = reallocate(parameters, *count + 1, sizeof *parameters, "parameters");
    parameters[(*count)++] = named_parameter(entry.value, entry.end);
  }
  return parameters;
}

static int is_text(const Field *field, const char *text) {
  const size_t size = strlen(text);
  return (size_t)(field->end - field->value) == size && memcmp(field->value, text, size) == 0;
}

// Return whether `matches` accepts any instruction of a module, be it in a fusion, a loop or a
// called computation.
static int any_instruction(unsigned char *at, unsigned char *end,
                           int (*matches)(unsigned char *, unsigned char *)) {
  enum { COMPUTATIONS = 3, INSTRUCTIONS = 2 };
  for (Field computation, instruction; next_field(&at, end, &computation);) {
    if (computation.number != COMPUTATIONS) continue;
    while (next_field(&computation.value, computation.end, &instruction)) {
      if (instruction.number != INSTRUCTIONS) continue;
      if (matches(instruction.value, instruction.end)) return 1;
    }
  }
  return 0;
}

enum { OPCODE = 2, TARGET = 28, IS_HOST_TRANSFER = 47 };

// Return whether an opcode is a collective's. An instruction that starts one asynchronously has
// "-start" behind the usual opcode, or calls a computation that has the usual one.
static int is_collective(const Field *opcode) {
  static const char *const OPCODES[] = {
      "all-reduce",          "all-gather",       "all-to-all",
      "ragged-all-to-all",   "reduce-scatter",   "collective-permute",
      "all-reduce-start",    "all-gather-start", "collective-permute-start",
      "collective-broadcast"};
  for (size_t i = 0; i < sizeof OPCODES / sizeof *OPCODES; ++i) {
    if (is_text(opcode, OPCODES[i])) return 1;
  }
  return 0;
}

static int is_exchange(unsigned char *at, unsigned char *end) {
  int sends = 0, is_of_host = 0;
  for (Field field; next_field(&at, end, &field);) {
    if (field.number == OPCODE && is_collective(&field)) return 1;
    if (field.number == OPCODE) sends = is_text(&field, "send") || is_text(&field, "recv");
    if (field.number == IS_HOST_TRANSFER) is_of_host = field.integer != 0;
  }
  return sends && !is_of_host;
}

static int is_kernel(unsigned char *at, unsigned char *end) {
  unsigned char *target = find_field(at, end, TARGET, &end);
  const Field field = {.value = target, .end = end};
  return target != NULL && is_text(&field, KERNEL_TARGET);
}

int module_calls_kernel(const char *program, size_t size, int with_config) {
  unsigned char *end, *at = find_module(program, size, with_config, &end);
  return at != NULL && any_instruction(at, end, is_kernel);
}

// Return whether a ShapeProto is of floating-point numbers of 8 bits or fewer, or a tuple with
// such.
static int has_small_float(unsigned char *at, unsigned char *end) {
  enum { TYPE = 2, ELEMENTS = 4 };
  // Of PrimitiveType in xla_data.proto: F8E5M2 is 19, F8E3M4 29, F4E2M1FN 32 and F8E8M0FNU 33.
  static const uint64_t SMALL = 1ull << 19 | 1ull << 20 | 1ull << 23 | 1ull << 24 | 1ull << 25 |
                                1ull << 28 | 1ull << 29 | 1ull << 32 | 1ull << 33;
  for (Field field; next_field(&at, end, &field);) {
    if (field.number == TYPE && field.integer < 64 && SMALL >> field.integer & 1) return 1;
    if (field.number == ELEMENTS && has_small_float(field.value, field.end)) return 1;
  }
  return 0;
}

static int is_of_small_floats(unsigned char *at, unsigned char *end) {
  enum { SHAPE = 3 };
  unsigned char *shape = find_field(at, end, SHAPE, &end);
  return shape != NULL && has_small_float(shape, end);
}

int module_has_small_floats(const char *program, size_t size, int with_config) {
  unsigned char *end, *at = find_module(program, size, with_config, &end);
  return at != NULL && any_instruction(at, end, is_of_small_floats);
}

// Find the HloModuleProtoWithConfig of a serialised CPU executable; NULL without one.
static unsigned char *find_program(const char *executable, size_t size, unsigned char **end) {
  enum { RESULT = 1, HLO = 1 };
  unsigned char *at = (unsigned char *)executable;
  *end = at + size;
  if ((at = find_field(at, *end, RESULT, end)) == NULL) return NULL;
  return find_field(at, *end, HLO, end);
}

int executable_exchanges(const char *executable, size_t size, int *exchanges) {
  unsigned char *end, *at = find_program(executable, size, &end);
  if (at != NULL) at = find_field(at, end, MODULE_FIELD, &end);
  if (at != NULL) *exchanges = any_instruction(at, end, is_exchange);
  return at != NULL;
}

int64_t *donated_parameters(const char *executable, size_t size, size_t *count) {
  unsigned char *end, *at = find_program(executable, size, &end);
  *count = 0;
  return at == NULL ? NULL : donated_by_module((const char *)at, (size_t)(end - at), 1, count);
}

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// A TPU refuses an argument that is not as large as the executable's parameter, and parameters of
// equal bytes differ in size there, since an array's last two dimensions are padded. The CPU's
// client compares bytes, so it would read shards of 2x128 as a parameter of 8x32.

// A parameter without a type takes any argument: a token or what has no shape of its own.
typedef struct {
  PJRT_Buffer_Type type;
  size_t dimensions_count;
  int64_t *dimensions;
} Parameter;

// What an executable takes, known from its first execution on.
typedef struct {
  Known known;
  char *name;  // of the program
  size_t count, results;
  Parameter *each;
} Parameters;

static Known *executables;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { ELEMENT_TYPE = 2, DIMENSIONS = 3, ELEMENTS = 4 };  // of a ShapeProto
enum { NAME = 1, PROGRAM_SHAPE = 4 };                     // of an HloModuleProto
enum { PARAMETER = 1, RESULT = 2 };                       // of a ProgramShapeProto
enum { TUPLE = 13, TYPES = 34 };                          // of xla_data.proto's PrimitiveType

// PJRT's number and HLO's name of each PrimitiveType.
static const struct {
  PJRT_Buffer_Type type;
  const char *name;
} TYPE[TYPES] = {
    [1] = {PJRT_Buffer_Type_PRED, "pred"},
    [2] = {PJRT_Buffer_Type_S8, "s8"},
    [3] = {PJRT_Buffer_Type_S16, "s16"},
    [4] = {PJRT_Buffer_Type_S32, "s32"},
    [5] = {PJRT_Buffer_Type_S64, "s64"},
    [6] = {PJRT_Buffer_Type_U8, "u8"},
    [7] = {PJRT_Buffer_Type_U16, "u16"},
    [8] = {PJRT_Buffer_Type_U32, "u32"},
    [9] = {PJRT_Buffer_Type_U64, "u64"},
    [10] = {PJRT_Buffer_Type_F16, "f16"},
    [11] = {PJRT_Buffer_Type_F32, "f32"},
    [12] = {PJRT_Buffer_Type_F64, "f64"},
    [15] = {PJRT_Buffer_Type_C64, "c64"},
    [16] = {PJRT_Buffer_Type_BF16, "bf16"},
    [18] = {PJRT_Buffer_Type_C128, "c128"},
    [19] = {PJRT_Buffer_Type_F8E5M2, "f8e5m2"},
    [20] = {PJRT_Buffer_Type_F8E4M3FN, "f8e4m3fn"},
    [21] = {PJRT_Buffer_Type_S4, "s4"},
    [22] = {PJRT_Buffer_Type_U4, "u4"},
    [23] = {PJRT_Buffer_Type_F8E4M3B11FNUZ, "f8e4m3b11fnuz"},
    [24] = {PJRT_Buffer_Type_F8E5M2FNUZ, "f8e5m2fnuz"},
    [25] = {PJRT_Buffer_Type_F8E4M3FNUZ, "f8e4m3fnuz"},
    [26] = {PJRT_Buffer_Type_S2, "s2"},
    [27] = {PJRT_Buffer_Type_U2, "u2"},
    [28] = {PJRT_Buffer_Type_F8E4M3, "f8e4m3"},
    [29] = {PJRT_Buffer_Type_F8E3M4, "f8e3m4"},
    [32] = {PJRT_Buffer_Type_F4E2M1FN, "f4e2m1fn"},
    [33] = {PJRT_Buffer_Type_F8E8M0FNU, "f8e8m0fnu"},
};

static void add_dimension(Parameter *parameter, uint64_t size) {
  const size_t count = ++parameter->dimensions_count;
  parameter->dimensions =
      reallocate(parameter->dimensions, count, sizeof *parameter->dimensions, "a shape");
  parameter->dimensions[count - 1] = (int64_t)size;
}

static Parameter parameter_of(unsigned char *shape, unsigned char *end) {
  Parameter parameter = {0};
  for (Field field; next_field(&shape, end, &field);) {
    if (field.number == ELEMENT_TYPE && field.integer < TYPES) {
      parameter.type = TYPE[field.integer].type;
    } else if (field.number == DIMENSIONS && field.wire == VARINT) {
      add_dimension(&parameter, field.integer);
    } else if (field.number == DIMENSIONS) {  // packed
      while (field.value < field.end)
        add_dimension(&parameter, read_varint(&field.value, field.end));
    }
  }
  return parameter;
}

static int is_tuple(unsigned char *shape, unsigned char *end) {
  unsigned char *type_end, *type = find_field(shape, end, ELEMENT_TYPE, &type_end);
  return type != NULL && read_varint(&type, type_end) == TUPLE;
}

// Add what is repeated under `number` inside of a message.
static void add_all(Parameters *to, unsigned char *at, unsigned char *end, unsigned number) {
  for (Field field; next_field(&at, end, &field);) {
    if (field.number != number) continue;
    to->each = reallocate(to->each, to->count + 1, sizeof *to->each, "parameters");
    to->each[to->count++] = parameter_of(field.value, field.end);
  }
}

static size_t count_results(unsigned char *shape, unsigned char *end) {
  if (!is_tuple(shape, end)) return 1;
  size_t count = 0;
  for (Field field; next_field(&shape, end, &field);) count += field.number == ELEMENTS;
  return count;
}

static void learn(Parameters *to, unsigned char *module, unsigned char *end) {
  unsigned char *last, *at = find_field(module, end, NAME, &last);
  to->name = at == NULL ? strdup("?") : strndup((const char *)at, (size_t)(last - at));
  if ((at = find_field(module, end, PROGRAM_SHAPE, &last)) == NULL) return;
  unsigned char *result_end, *result = find_field(at, last, RESULT, &result_end);
  to->results = result == NULL ? 0 : count_results(result, result_end);
  unsigned char *only_end, *only = find_field(at, last, PARAMETER, &only_end);
  if (only != NULL && is_tuple(only, only_end)) {  // all arguments in one
    add_all(to, only, only_end, ELEMENTS);
  } else {
    add_all(to, at, last, PARAMETER);
  }
}

void parameters_forget(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Parameters *all = known_take(&executables, executable);
  pthread_mutex_unlock(&lock);
  if (all == NULL) return;
  for (size_t i = 0; i < all->count; ++i) free(all->each[i].dimensions);
  free(all->each);
  free(all->name);
  free(all);
}

// Find what an executable takes, or learn it, and put it first in the list. NULL where the backend
// can't say, such as for one that is deleted. The lock is held.
static const Parameters *find(PJRT_LoadedExecutable *executable) {
  Parameters *all = known_take(&executables, executable);
  if (all == NULL) {
    PJRT_Program program;
    PJRT_Error *error = program_optimized(executable, &program);
    if (error != NULL) {
      error_drop(error);
      return NULL;
    }
    all = allocate(1, sizeof *all, "parameters");
    unsigned char *end,
        *module = find_module(program.code, program.code_size, program_has_config(&program), &end);
    if (module != NULL) learn(all, module, end);
    free(program.code);
  }
  return known_add(&executables, executable, all);
}

static void write_shape(FILE *to, PJRT_Buffer_Type type, const int64_t *dimensions, size_t count) {
  const char *name = "?";
  for (size_t i = 0; i < TYPES; ++i) {
    if (TYPE[i].name != NULL && TYPE[i].type == type) name = TYPE[i].name;
  }
  fprintf(to, "%s[", name);
  for (size_t i = 0; i < count; ++i) {
    fprintf(to, "%s%lld", i == 0 ? "" : ",", (long long)dimensions[i]);
  }
  fputs("]", to);
}

static PJRT_Error *refuse(const Parameters *all, size_t index, PJRT_Buffer_Type type,
                          const PJRT_Buffer_Dimensions_Args *shape) {
  const Parameter *parameter = &all->each[index];
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  fputs("expected ", stream);
  write_shape(stream, parameter->type, parameter->dimensions, parameter->dimensions_count);
  fputs(" but got a buffer of ", stream);
  write_shape(stream, type, shape->dims, shape->num_dims);
  fclose(stream);
  PJRT_Error *error = error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                                "Executable(%s): parameter %zu: %s", all->name, index, text);
  free(text);
  return error;
}

static PJRT_Error *check(const Parameters *all, size_t index, PJRT_Buffer *buffer) {
  const Parameter *parameter = &all->each[index];
  if (parameter->type == PJRT_Buffer_Type_INVALID) return NULL;
  PJRT_Buffer_ElementType_Args type = {SIZED(PJRT_Buffer_ElementType_Args), .buffer = buffer};
  TRY(PJRT_Buffer_ElementType, type);
  PJRT_Buffer_Dimensions_Args shape = {SIZED(PJRT_Buffer_Dimensions_Args), .buffer = buffer};
  TRY(PJRT_Buffer_Dimensions, shape);
  const size_t size = parameter->dimensions_count * sizeof *parameter->dimensions;
  if (type.type == parameter->type && shape.num_dims == parameter->dimensions_count &&
      (size == 0 || memcmp(shape.dims, parameter->dimensions, size) == 0)) {
    return NULL;
  }
  return refuse(all, index, type.type, &shape);
}

static PJRT_Error *check_all(const Parameters *all,
                             const PJRT_LoadedExecutable_Execute_Args *args) {
  if (args->num_devices > 0 && args->num_args != all->count) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "Executable(%s): expected %zu arguments but got %zu", all->name, all->count,
                     args->num_args);
  }
  for (size_t i = 0; i < args->num_devices; ++i) {
    for (size_t k = 0; k < args->num_args; ++k) {
      PJRT_Error *error = check(all, k, args->argument_lists[i][k]);
      if (error != NULL) return error;
    }
  }
  return NULL;
}

PJRT_Error *parameters_check(const PJRT_LoadedExecutable_Execute_Args *args) {
  pthread_mutex_lock(&lock);
  const Parameters *all = find(args->executable);
  PJRT_Error *error = all == NULL || all->name == NULL ? NULL : check_all(all, args);
  pthread_mutex_unlock(&lock);
  return error;
}

size_t parameters_results(PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  const Parameters *all = find(executable);
  const size_t results = all == NULL ? 0 : all->results;
  pthread_mutex_unlock(&lock);
  return results;
}

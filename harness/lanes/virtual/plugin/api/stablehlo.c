#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

typedef struct {
  int64_t part[3];
} Version;

static int is_newest(const PJRT_NamedValue *value) {
  static const char name[] = "stablehlo_current_version";
  return value->name_size == strlen(name) && value->value_size == 3 &&
         strncmp(value->name, name, strlen(name)) == 0;
}

static int read_version(const char *text, Version *version) {
  int64_t *part = version->part;
  return sscanf(text, "%" SCNd64 ".%" SCNd64 ".%" SCNd64, &part[0], &part[1], &part[2]) == 3;
}

PJRT_NamedValue *stablehlo_attributes(const PJRT_Plugin_Attributes_Args *backends,
                                      const char *newest) {
  PJRT_NamedValue *copy =
      allocate(backends->num_attributes, sizeof *copy, "the plugin's attributes");
  memcpy(copy, backends->attributes, backends->num_attributes * sizeof *copy);
  static Version version;
  const int read = newest != NULL && read_version(newest, &version);
  for (size_t i = 0; read && i < backends->num_attributes; ++i) {
    if (is_newest(&copy[i])) copy[i].int64_array_value = version.part;
  }
  return copy;
}

// Read the StableHLO version of a portable artifact, which begins with MLIR's magic number, the
// version of its encoding in one byte, and its producer's name, which has that version.
static int version_of(const PJRT_Program *program, Version *version) {
  static const char magic[] = "ML\xEFR", producer[] = "StableHLO_v";
  const size_t start = strlen(magic) + 1, length = strlen(producer);
  char text[64] = "";
  if (program->code_size < start + length + sizeof text) return 0;
  if (memcmp(program->code, magic, strlen(magic)) != 0) return 0;
  if (memcmp(program->code + start, producer, length) != 0) return 0;
  memcpy(text, program->code + start + length, sizeof text - 1);
  return read_version(text, version);
}

int stablehlo_is_newer(const PJRT_Program *program) {
  Version version;
  PJRT_Plugin_Attributes_Args args = {SIZED(PJRT_Plugin_Attributes_Args)};
  if (!version_of(program, &version)) return 0;
  PJRT_Error *error = backend->PJRT_Plugin_Attributes(&args);
  if (error != NULL) error_drop(error);
  for (size_t i = 0; error == NULL && i < args.num_attributes; ++i) {
    if (!is_newest(&args.attributes[i])) continue;
    const int64_t *known = args.attributes[i].int64_array_value, *part = version.part;
    const int at = part[0] != known[0] ? 0 : part[1] != known[1] ? 1 : 2;
    return part[at] > known[at];
  }
  return 0;
}

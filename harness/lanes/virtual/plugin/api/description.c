#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

// What a platform of harness/platforms says of itself, in the variables that lane virtual-* sets.

#define TEXT_VARIABLE "VIRTUAL_TPU_DEVICE"
#define REPRESENTATION_VARIABLE "VIRTUAL_TPU_DEVICE_REPR"
#define ATTRIBUTES_VARIABLE "VIRTUAL_TPU_ATTRIBUTES"

static const char *const NUMBERS[] = {"id", "process", "slice", "x", "y", "z", "core", "index"};

static char launch_names[LAUNCH_VARIABLES][64];

const char *variable(const char *name) {
  const char *value = getenv(name);
  return value != NULL && *value != '\0' ? value : NULL;
}

const char *platform_title(void) {
  const char *title = variable("VIRTUAL_TPU_TITLE");
  return title != NULL ? title : "TPU";  // of a process that no lane has set up yet
}

const char *platform_compiler(void) {
  const char *name = variable("VIRTUAL_TPU_COMPILER");
  return name != NULL ? name : "the vendor's compiler";
}

// Read the names, which stand in the order of LaunchVariable with commas between.
static void read_launch_names(void) {
  const char *at = getenv("VIRTUAL_TPU_LAUNCH");
  for (int i = 0; at != NULL && i < LAUNCH_VARIABLES; ++i) {
    const size_t size = strcspn(at, ",");
    snprintf(launch_names[i], sizeof launch_names[i], "%.*s", (int)size, at);
    at = at[size] == ',' ? at + size + 1 : NULL;
  }
}

const char *launch_name(LaunchVariable which) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_launch_names);
  return launch_names[which];
}

const char *launch_value(LaunchVariable which) { return variable(launch_name(which)); }

// Put the numbers of a device in place of {id}, {process}, ... in so much of `pattern`.
static void fill(char *out, size_t room, const char *pattern, size_t size, const int *numbers) {
  const char *end = pattern + size;
  size_t used = 0;
  while (pattern < end && used + 1 < room) {
    size_t i = 0, length = 0;
    for (; *pattern == '{' && i < DEVICE_NUMBERS; ++i) {
      length = strlen(NUMBERS[i]);
      if (strncmp(pattern + 1, NUMBERS[i], length) == 0 && pattern[1 + length] == '}') break;
    }
    if (*pattern == '{' && i < DEVICE_NUMBERS) {
      used += (size_t)snprintf(out + used, room - used, "%d", numbers[i]);
      pattern += length + 2;
    } else {
      out[used++] = *pattern++;
    }
  }
  out[used < room ? used : room - 1] = '\0';
}

// Return an attribute as one number, as a list if there is a comma, or else as text.
static PJRT_NamedValue value_of(Attribute *attribute) {
  PJRT_NamedValue value = {SIZED(PJRT_NamedValue),
                           .name = attribute->name,
                           .name_size = strlen(attribute->name),
                           .type = PJRT_NamedValue_kString,
                           .string_value = attribute->text,
                           .value_size = strlen(attribute->text)};
  const char *at = attribute->text;
  size_t count = 0;
  for (int number; count < 3 && number_read(&at, 0, 1 << 30, &number);) {
    attribute->numbers[count++] = number;
    if (*at == '\0' && count == 1) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = number;
      value.value_size = 1;
    } else if (*at == '\0' || strcmp(at, ",") == 0) {
      value.type = PJRT_NamedValue_kInt64List;
      value.int64_array_value = attribute->numbers;
      value.value_size = count;
    }
    if (*at++ != ',') break;
  }
  return value;
}

static void fill_from(const char *name, char *out, size_t room, const int *numbers) {
  const char *pattern = variable(name);
  if (pattern != NULL) fill(out, room, pattern, strlen(pattern), numbers);
}

void description_fill(DeviceDescription *described, const int *numbers) {
  const char *at = variable(ATTRIBUTES_VARIABLE);
  fill_from(TEXT_VARIABLE, described->text, sizeof described->text, numbers);
  fill_from(REPRESENTATION_VARIABLE, described->representation, sizeof described->representation,
            numbers);
  for (int i = 0; at != NULL && i < MOST_ATTRIBUTES; ++i) {
    Attribute *attribute = &described->attributes[i];
    const size_t size = strcspn(at, ";"), name = strcspn(at, "=;");
    snprintf(attribute->name, sizeof attribute->name, "%.*s", (int)name, at);
    if (name < size) {
      fill(attribute->text, sizeof attribute->text, at + name + 1, size - name - 1, numbers);
    }
    described->values[described->count++] = value_of(attribute);
    at = at[size] == ';' ? at + size + 1 : NULL;
  }
}

#define _GNU_SOURCE
#include <string.h>

#include "compile/compile.h"

uint64_t read_varint(unsigned char **at, const unsigned char *end) {
  uint64_t value = 0;
  for (int shift = 0; *at < end && shift < 64; shift += 7) {
    const unsigned char byte = *(*at)++;
    value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

int next_field(unsigned char **at, unsigned char *end, Field *field) {
  if (*at >= end) return 0;
  const uint64_t tag = read_varint(at, end);
  *field = (Field){.number = (unsigned)(tag >> 3), .wire = (unsigned)(tag & 7)};
  uint64_t size = field->wire == WIDE ? 8 : field->wire == NARROW ? 4 : 0;
  if (field->wire == BYTES) size = read_varint(at, end);
  field->value = *at;
  if (field->wire == VARINT) field->integer = read_varint(at, end);
  if (size > (uint64_t)(end - *at)) return 0;
  *at += size;
  field->end = *at;
  return 1;
}

unsigned char *find_field(unsigned char *at, unsigned char *end, unsigned number,
                          unsigned char **value_end) {
  unsigned char *value = NULL;
  for (Field field; next_field(&at, end, &field);) {
    if (field.number != number) continue;
    value = field.value;
    *value_end = field.end;
  }
  return value;
}

const char *find_note(const char *bytes, size_t size, const char *name, size_t *length) {
  const char *note = memmem(bytes, size, name, strlen(name));
  if (note == NULL) return NULL;
  note += strlen(name);
  const char *end = memchr(note, ';', (size_t)(bytes + size - note));
  if (end == NULL) return NULL;
  *length = (size_t)(end - note);
  return note;
}

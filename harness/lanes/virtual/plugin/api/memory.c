#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "api/api.h"

// Ends the process if there is no memory.
static void *checked(void *memory, size_t count, size_t size, const char *purpose) {
  if (memory != NULL) return memory;
  fprintf(stderr, "%sno memory for %s: %zu times %zu bytes\n", in_own_words(""), purpose, count,
          size);
  abort();
}

void *allocate(size_t count, size_t size, const char *purpose) {
  return checked(calloc(count + (count == 0), size), count, size, purpose);
}

void *reallocate(void *memory, size_t count, size_t size, const char *purpose) {
  return checked(reallocarray(memory, count, size), count, size, purpose);
}

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

_Thread_local const void *older_caller;

// Return whether a struct of this size ends with a field. A caller of an older PJRT has smaller
// structs, since PJRT only ever appends fields. Its struct is copied into a zeroed one of this
// plugin's size and back; zero is what PJRT means by an absent field. A struct that ends in the
// middle of a field is none of PJRT's, and is refused; so is one that has no field of its own
// behind its size and its extensions.
static int ends_at(size_t size, const size_t *ends, size_t count) {
  for (size_t i = 2; i < count; ++i) {
    if (ends[i] == size) return 1;
  }
  return 0;
}

static PJRT_Error *refused(const char *call, size_t given, size_t expected) {
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "%s was called with a struct of %zu bytes; this plugin's has %zu, "
                   "and none that is shorter ends there: it can't be bridged",
                   call, given, expected);
}

// `front` stands before every entry. It calls `own` in its last step, which is a jump: the entry
// returns to the framework, whose name it can look up.
#define ENTRY(call, ...)                                                            \
  PJRT_Error *bridge_##call(call##_Args *args) {                                    \
    return backend == NULL ? backend_missing() : backend->call(args);               \
  }                                                                                 \
  static PJRT_Error *(*own_##call)(call##_Args *);                                  \
  __attribute__((noinline)) static PJRT_Error *widened_##call(call##_Args *args,    \
                                                              const void *caller) { \
    static const size_t ends[] = {__VA_ARGS__};                                     \
    const size_t size = call##_Args_STRUCT_SIZE, given = args->struct_size;         \
    if (!ends_at(given, ends, sizeof ends / sizeof *ends)) {                        \
      return refused(#call, given, size);                                           \
    }                                                                               \
    call##_Args wide;                                                               \
    memset(&wide, 0, sizeof wide);                                                  \
    memcpy(&wide, args, given);                                                     \
    wide.struct_size = size;                                                        \
    older_caller = caller;                                                          \
    PJRT_Error *error = own_##call(&wide);                                          \
    older_caller = NULL;                                                            \
    wide.struct_size = given;                                                       \
    memcpy(args, &wide, given);                                                     \
    return error;                                                                   \
  }                                                                                 \
  static PJRT_Error *front_##call(call##_Args *args) {                              \
    if (args->struct_size >= call##_Args_STRUCT_SIZE) return own_##call(args);      \
    return widened_##call(args, __builtin_return_address(0));                       \
  }
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)                                                    \
  PJRT_Error *widen_##name(name *wide, const name *from) {                   \
    static const size_t ends[] = {__VA_ARGS__};                              \
    const size_t size = name##_STRUCT_SIZE, given = from->struct_size;       \
    if (given < size && !ends_at(given, ends, sizeof ends / sizeof *ends)) { \
      return refused(#name, given, size);                                    \
    }                                                                        \
    memset(wide, 0, sizeof *wide);                                           \
    memcpy(wide, from, given < size ? given : size);                         \
    wide->struct_size = size;                                                \
    return NULL;                                                             \
  }
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT

// Fill the caller's own struct, whatever size it names: headers up to PJRT 0.7x gave the size
// without the last field, which their structs have and their callers read.
static PJRT_Error *plugin_attributes(PJRT_Plugin_Attributes_Args *args) {
  if (backend == NULL) return backend_missing();
  const size_t given = args->struct_size, size = PJRT_Plugin_Attributes_Args_STRUCT_SIZE;
  if (given < size && given != PJRT_STRUCT_SIZE(PJRT_Plugin_Attributes_Args, attributes)) {
    return refused("PJRT_Plugin_Attributes", given, size);
  }
  PJRT_Plugin_Attributes_Args wide = {.struct_size = size};
  TRY(PJRT_Plugin_Attributes, wide);
  char *newest = python_stablehlo();  // not under the lock: whoever waits for that may be Python
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  static PJRT_NamedValue *known;  // for as long as the process lives, as the backend's are
  if (known == NULL) known = stablehlo_attributes(&wide, newest);
  pthread_mutex_unlock(&lock);
  free(newest);
  args->attributes = known;
  args->num_attributes = wide.num_attributes;
  return NULL;
}

void bridge_fill(PJRT_Api *api) {
#define ENTRY(call, ...) \
  if (backend == NULL || backend->call != NULL) api->call = bridge_##call;
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT
  api->PJRT_Plugin_Attributes = plugin_attributes;
  api->PJRT_Error_Destroy = error_destroy;
  api->PJRT_Error_Message = error_message;
  api->PJRT_Error_GetCode = error_get_code;
}

void bridge_front(PJRT_Api *api) {
#define ENTRY(call, ...)      \
  if (api->call != NULL) {    \
    own_##call = api->call;   \
    api->call = front_##call; \
  }
#define VOID_ENTRY(call, ...)
#define STRUCT(name, ...)
#include "entries.inc"
#undef ENTRY
#undef VOID_ENTRY
#undef STRUCT
  api->PJRT_Plugin_Attributes = plugin_attributes;  // which has sizes of its own
}

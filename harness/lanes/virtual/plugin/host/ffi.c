#include "host/ffi.h"

#include <pthread.h>
#include <string.h>

typedef struct {
  size_t struct_size;
  const char *target;
  size_t target_size;
  void *handler;
  const char *platform;
  size_t platform_size;
  uint32_t traits;
} RegisterArgs;

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *name;
  size_t name_size;
  int64_t type;  // in and out: 0 asks for one
} TypeArgs;

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_ExecuteContext *context;
  int64_t type;
  void *data;
  void (*deleter)(void *data);
} UserDataArgs;

typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*type_register)(TypeArgs *args);
  PJRT_Error *(*user_data_add)(UserDataArgs *args);
  PJRT_Error *(*handler_register)(RegisterArgs *args);
} Extension;

static const Extension *extension(void) {
  const PJRT_Extension_Base *base = backend == NULL ? NULL : backend->extension_start;
  while (base != NULL && base->type != PJRT_Extension_Type_FFI) base = base->next;
  return (const Extension *)base;
}

int ffi_asks_version(const FfiCall *call) {
  for (FfiExtension *extension = call->extension_start; extension != NULL;
       extension = extension->next) {
    if (extension->type != FFI_METADATA) continue;
    FfiVersion *version = &((FfiMetadata *)extension)->metadata->version;
    version->major = 0;
    version->minor = 1;
    return 1;
  }
  return 0;
}

uint64_t ffi_attribute(const FfiCall *call, const char *name) {
  for (int64_t i = 0; i < call->attributes.size; ++i) {
    const FfiSpan *span = call->attributes.names[i];
    if (span->size == strlen(name) && memcmp(span->text, name, span->size) == 0) {
      return *(const uint64_t *)((const FfiScalar *)call->attributes.values[i])->value;
    }
  }
  return 0;
}

FfiError *ffi_error(const FfiCall *call, const char *text) {
  if (text == NULL) return NULL;
  FfiErrorArgs args = {.struct_size = sizeof args, .message = text, .code = FFI_INTERNAL};
  return call->api->error_create(&args);
}

void ffi_register(const char *target, FfiHandler handler) {
  const Extension *ffi = extension();
  if (ffi == NULL) return;
  RegisterArgs args = {.struct_size = sizeof args,
                       .target = target,
                       .target_size = strlen(target),
                       .handler = (void *)handler,
                       .platform = "Host",
                       .platform_size = strlen("Host")};
  error_drop(ffi->handler_register(&args));
}

// --- What a handler finds

static int64_t type;

static void register_type(void) {
  static const char NAME[] = "virtual TPU execution";
  TypeArgs args = {.struct_size = sizeof args, .name = NAME, .name_size = sizeof NAME - 1};
  error_drop(extension()->type_register(&args));
  type = args.type;
}

PJRT_Error *ffi_add_user_data(PJRT_ExecuteContext *context, void *data) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_type);
  UserDataArgs args = {.struct_size = sizeof args, .context = context, .type = type, .data = data};
  return extension()->user_data_add(&args);
}

void *ffi_user_data(const FfiCall *call) {
  FfiUserDataArgs args = {.struct_size = sizeof args, .context = call->context, .type = &type};
  FfiErrorDestroyArgs none = {.struct_size = sizeof none, .error = call->api->user_data_get(&args)};
  if (none.error == NULL) return args.data;
  call->api->error_destroy(&none);
  return NULL;
}

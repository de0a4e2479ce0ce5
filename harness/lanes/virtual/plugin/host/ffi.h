// Functions that a running program calls: how XLA hands them a call, and how the CPU plugin takes
// them through an extension that the header of xla-cpu-pjrt numbers and does not declare. Layouts:
// https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_ffi_extension.h
// https://github.com/openxla/xla/blob/main/xla/ffi/api/c_api.h
#ifndef XLA_HARNESS_VIRTUAL_TPU_FFI_H_
#define XLA_HARNESS_VIRTUAL_TPU_FFI_H_

#include "api/api.h"

enum { FFI_METADATA = 1, FFI_INTERNAL = 13 };  // an extension's type, and a code of an error

typedef struct FfiExtension {
  size_t struct_size;
  int type;
  struct FfiExtension *next;
} FfiExtension;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int major, minor;
} FfiVersion;

typedef struct {
  FfiExtension base;
  struct {
    size_t struct_size;
    FfiVersion version;
    uint32_t traits;
  } *metadata;  // out
} FfiMetadata;

typedef struct FfiError FfiError;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  const char *message;
  int code;
} FfiErrorArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  FfiError *error;
} FfiErrorDestroyArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  void *context;
  union {
    int64_t run_id;          // out
    int32_t device_ordinal;  // out
  };
} FfiContextArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  void *context;
  const int64_t *type;
  void *data;  // out
} FfiUserDataArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  FfiVersion version;
  void *internal;
  FfiError *(*error_create)(FfiErrorArgs *args);
  void *message_get;
  void (*error_destroy)(FfiErrorDestroyArgs *args);
  void *others[3];
  FfiError *(*user_data_get)(FfiUserDataArgs *args);
  void *more[9];
  FfiError *(*run_id_get)(FfiContextArgs *args);
  FfiError *(*device_ordinal_get)(FfiContextArgs *args);
} FfiApi;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int element_type;
  void *data;
  int64_t rank, *dimensions;
} FfiBuffer;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int64_t size;
  int *types;
  FfiBuffer **buffers;
} FfiBuffers;

typedef struct {
  const char *text;
  size_t size;
} FfiSpan;

typedef struct {
  int element_type;
  void *value;
} FfiScalar;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int64_t size;
  int *types;
  FfiSpan **names;
  void **values;
} FfiAttributes;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  const FfiApi *api;
  void *context;
  int stage;
  FfiBuffers arguments, results;
  FfiAttributes attributes;
} FfiCall;

// Answer XLA if it only asks for a handler's version, and return whether it did: the layouts above
// have been like that since 0.1.
int ffi_asks_version(const FfiCall *call);
// Return a call's attribute of 64 bits; 0 without it.
uint64_t ffi_attribute(const FfiCall *call, const char *name);
// Make an error of a call; a NULL text is no error.
FfiError *ffi_error(const FfiCall *call, const char *text);
// Have programs of the backend's call `handler` by that name. Where it takes no handlers, a program
// with such a call fails to compile, by the target's name.
typedef FfiError *(*FfiHandler)(FfiCall *call);
void ffi_register(const char *target, FfiHandler handler);
// Have the handlers that an execution calls find `data`; needs a context of the execution.
PJRT_Error *ffi_add_user_data(PJRT_ExecuteContext *context, void *data);
// Return in a handler the data that was added for it; NULL without. The execution must have a
// context.
void *ffi_user_data(const FfiCall *call);

#endif

// PJRT's extension for transfers between processes.
//
// The header of xla-cpu-pjrt names this extension and does not declare it. Layout of version 5, and
// what frees a description, which came later:
// https://github.com/openxla/xla/blob/main/xla/pjrt/extensions/cross_host_transfers/
// pjrt_c_api_cross_host_transfers_extension.h

#ifndef XLA_HARNESS_VIRTUAL_TPU_TRANSFERS_H_
#define XLA_HARNESS_VIRTUAL_TPU_TRANSFERS_H_

#include <stdbool.h>

#include "pjrt_c_api.h"

typedef void (*OnCanceled)(PJRT_Error *error, void *argument);
typedef void (*CancelNotifier)(const char *description, size_t size, PJRT_Error_Code reason,
                               const char *message, size_t message_size, OnCanceled on_canceled,
                               void *on_canceled_argument, void *argument);

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t num_shapes;
  const size_t *shape_num_dims;
  const int64_t *const *dims;
  const PJRT_Buffer_Type *element_types;
  PJRT_Buffer_MemoryLayout *const *layouts;
  PJRT_Device *device;
  void *argument;
  // To be called once, with the descriptions; they need not live longer.
  void (*notifier)(PJRT_Error *error, const char **descriptions, size_t *sizes, size_t count,
                   void *argument, CancelNotifier cancel, void *cancel_argument);
  PJRT_Buffer **buffers;  // out
  size_t num_buffers;     // out
} ReceiveArgs;

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Event *event;  // of the description, NULL when it is there
  char **description;
  size_t *description_size;
  void *argument;
  void (*on_done)(PJRT_Error *error, bool sends_were_enqueued, void *argument);
  void (*free_description)(char **description, size_t *size);  // of newer callers
} SendArgs;

typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*receive)(ReceiveArgs *args);
  void (*send)(SendArgs *args);
  PJRT_Error *(*receive_by_key)(void *args);
  PJRT_Error *(*send_by_key)(void *args);
} TransfersExtension;

#endif  // XLA_HARNESS_VIRTUAL_TPU_TRANSFERS_H_

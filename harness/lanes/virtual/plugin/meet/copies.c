#include <string.h>

#include "meet/meeting.h"

// Copies that the calling thread makes itself. The backend copies in a thread of its own, and to
// wake that, and be woken by it, takes longer than to copy an array of usual size.

static PJRT_Error *has_value(PJRT_Buffer *buffer, int *has) {
  PJRT_Buffer_ReadyEvent_Args ready = {SIZED(PJRT_Buffer_ReadyEvent_Args), .buffer = buffer};
  TRY(PJRT_Buffer_ReadyEvent, ready);
  PJRT_Event_IsReady_Args is_ready = {SIZED(PJRT_Event_IsReady_Args), .event = ready.event};
  PJRT_Error *error = backend->PJRT_Event_IsReady(&is_ready);
  *has = error == NULL && is_ready.is_ready;
  if (*has) return event_await(ready.event);  // which does not wait, and may be an error
  event_drop(ready.event);
  return error;
}

// Compare a buffer's size with its array's: they are equal unless its elements are packed.
static PJRT_Error *has_size(PJRT_Buffer *buffer, size_t size, int *has) {
  PJRT_Buffer_OnDeviceSizeInBytes_Args args = {SIZED(PJRT_Buffer_OnDeviceSizeInBytes_Args),
                                               .buffer = buffer};
  TRY(PJRT_Buffer_OnDeviceSizeInBytes, args);
  *has = args.on_device_size_in_bytes == size;
  return NULL;
}

// Copy the bytes of a buffer that is held, so that nobody deletes it meanwhile.
static PJRT_Error *copy_held(PJRT_Buffer *buffer, void *to, size_t size) {
  PJRT_Buffer_UnsafePointer_Args pointer = {SIZED(PJRT_Buffer_UnsafePointer_Args),
                                            .buffer = buffer};
  TRY(PJRT_Buffer_UnsafePointer, pointer);
  memcpy(to, (const void *)pointer.buffer_pointer, size);
  return NULL;
}

PJRT_Error *buffer_copy_here(PJRT_Buffer *buffer, void *to, size_t size, int *copied) {
  *copied = 0;
  int may;
  PJRT_Error *error = has_value(buffer, &may);
  if (error == NULL && may) error = has_size(buffer, size, &may);
  if (error == NULL && may) error = buffer_is_row_major(buffer, &may);
  if (error != NULL || !may) return error;
  PJRT_Buffer_IncreaseExternalReferenceCount_Args hold = {
      SIZED(PJRT_Buffer_IncreaseExternalReferenceCount_Args), .buffer = buffer};
  TRY(PJRT_Buffer_IncreaseExternalReferenceCount, hold);
  error = copy_held(buffer, to, size);
  PJRT_Buffer_DecreaseExternalReferenceCount_Args release = {
      SIZED(PJRT_Buffer_DecreaseExternalReferenceCount_Args), .buffer = buffer};
  TRY(PJRT_Buffer_DecreaseExternalReferenceCount, release);
  *copied = error == NULL;
  return error;
}

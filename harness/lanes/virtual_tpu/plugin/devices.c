#include <stdlib.h>

#include "plugin.h"

// In a job of several processes each has a CPU client with the devices of all, of which it may
// address its own. That one process has the devices of all is what lets any of them compile a
// program for all.

enum { MOST = 4096 };
static PJRT_Client *learned;
static PJRT_Device *own[MOST];
static size_t own_count, all_count, memories_count;
static PJRT_Memory *own_memories[MOST];

static PJRT_DeviceDescription *description(PJRT_Device *device) {
  PJRT_Device_GetDescription_Args args = {
      .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = device};
  backend->PJRT_Device_GetDescription(&args);
  return args.device_description;
}

static int id_of(PJRT_DeviceDescription *described) {
  PJRT_DeviceDescription_Id_Args args = {.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE,
                                         .device_description = described};
  backend->PJRT_DeviceDescription_Id(&args);
  return args.id;
}

int device_id(PJRT_Device *device) { return id_of(description(device)); }

PJRT_Device *const *devices_own(size_t *count) {
  *count = own_count;
  return own;
}

PJRT_Client *devices_client(void) { return learned; }

static void learn_memories(PJRT_Device *device) {
  PJRT_Device_AddressableMemories_Args args = {
      .struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, .device = device};
  if (backend->PJRT_Device_AddressableMemories(&args) != NULL) return;
  for (size_t i = 0; i < args.num_memories && memories_count < MOST; ++i) {
    own_memories[memories_count++] = args.memories[i];
  }
}

void devices_learn(PJRT_Client *client) {
  learned = client;
  PJRT_Client_Devices_Args args = {.struct_size = PJRT_Client_Devices_Args_STRUCT_SIZE,
                                   .client = client};
  backend->PJRT_Client_Devices(&args);
  own_count = memories_count = 0;
  all_count = args.num_devices;
  for (size_t i = 0; i < args.num_devices; ++i) {
    const int id = device_id(args.devices[i]);
    if (!identity_is_own(id)) continue;
    own[own_count++] = args.devices[i];
    learn_memories(args.devices[i]);
  }
}

static PJRT_Error *addressable(PJRT_Client_AddressableDevices_Args *args) {
  args->addressable_devices = own;
  args->num_addressable_devices = own_count;
  return NULL;
}

static PJRT_Error *memories(PJRT_Client_AddressableMemories_Args *args) {
  if (own_count == all_count) return bridge_PJRT_Client_AddressableMemories(args);
  args->addressable_memories = own_memories;
  args->num_addressable_memories = memories_count;
  return NULL;
}

static PJRT_Error *memories_of(PJRT_Device_AddressableMemories_Args *args) {
  PJRT_Error *error = bridge_PJRT_Device_AddressableMemories(args);
  if (error == NULL && !identity_is_own(device_id(args->device))) args->num_memories = 0;
  return error;
}

static PJRT_Error *is_addressable(PJRT_Device_IsAddressable_Args *args) {
  args->is_addressable = identity_is_own(device_id(args->device));
  return NULL;
}

static PJRT_Error *process_index(PJRT_Client_ProcessIndex_Args *args) {
  args->process_index = identity.process;
  return NULL;
}

static PJRT_Error *process_of(PJRT_DeviceDescription_ProcessIndex_Args *args) {
  args->process_index = identity_process_of(id_of(args->device_description));
  return NULL;
}

static int local_index(PJRT_Device *device) {
  for (size_t i = 0; i < own_count; ++i) {
    if (own[i] == device) return (int)i;
  }
  return -1;
}

static PJRT_Error *local_id(PJRT_Device_LocalHardwareId_Args *args) {
  args->local_hardware_id = local_index(args->device);
  return NULL;
}

static PJRT_Error *lookup(PJRT_Client_LookupAddressableDevice_Args *args) {
  if (args->local_hardware_id < 0 || (size_t)args->local_hardware_id >= own_count) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: local device %d: this process has %zu", args->local_hardware_id,
                     own_count);
  }
  args->addressable_device = own[args->local_hardware_id];
  return NULL;
}

// The executable's own devices, without those of other processes. PJRT wants an array that lives as
// long as the executable: those of one process are few, and stay.
static PJRT_Error *of_executable(PJRT_LoadedExecutable_AddressableDevices_Args *args) {
  PJRT_Error *error = bridge_PJRT_LoadedExecutable_AddressableDevices(args);
  if (error != NULL || own_count == all_count) return error;
  PJRT_Device **kept = calloc(own_count + 1, sizeof *kept);
  size_t count = 0;
  for (size_t i = 0; i < args->num_addressable_devices; ++i) {
    PJRT_Device *device = args->addressable_devices[i];
    if (local_index(device) >= 0) kept[count++] = device;
  }
  args->addressable_devices = kept;
  args->num_addressable_devices = count;
  return NULL;
}

// jax.distributed tells which processes live. The executor watches those of a job itself, and the
// backend ends the process when its caller writes a process's state as another release does.
static PJRT_Error *update_processes(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  (void)args;
  return NULL;
}

void devices_fill(PJRT_Api *api) {
  api->PJRT_Client_AddressableDevices = addressable;
  api->PJRT_Client_AddressableMemories = memories;
  api->PJRT_Client_LookupAddressableDevice = lookup;
  api->PJRT_Client_ProcessIndex = process_index;
  api->PJRT_Client_UpdateGlobalProcessInfo = update_processes;
  api->PJRT_Device_AddressableMemories = memories_of;
  api->PJRT_Device_IsAddressable = is_addressable;
  api->PJRT_Device_LocalHardwareId = local_id;
  api->PJRT_DeviceDescription_ProcessIndex = process_of;
  api->PJRT_LoadedExecutable_AddressableDevices = of_executable;
}

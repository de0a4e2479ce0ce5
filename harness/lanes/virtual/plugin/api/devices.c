#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"

// In a job of several processes each has a CPU client with the devices of all, of which it may
// address its own. That one process has the devices of all is what lets any of them compile a
// program for all.

// A process may have several clients, as one of torch_xla and one of JAX.
typedef struct {
  Known known;
  PJRT_Device **own;
  PJRT_Memory **memories;
  size_t own_count, memories_count;
} Client;

// The devices of an executable that this process may address: PJRT wants an array that lives as
// long as the executable.
typedef struct {
  Known known;
  size_t count;
  PJRT_Device *devices[];
} OwnDevices;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Known *clients, *executables;
static pid_t process;  // that created the newest client

static PJRT_DeviceDescription *description(PJRT_Device *device) {
  PJRT_Device_GetDescription_Args args = {SIZED(PJRT_Device_GetDescription_Args), .device = device};
  backend->PJRT_Device_GetDescription(&args);
  return args.device_description;
}

int description_id(PJRT_DeviceDescription *description) {
  PJRT_DeviceDescription_Id_Args args = {SIZED(PJRT_DeviceDescription_Id_Args),
                                         .device_description = description};
  backend->PJRT_DeviceDescription_Id(&args);
  return args.id;
}

int device_id(PJRT_Device *device) { return description_id(description(device)); }

static int is_whole(void) { return identity.processes == 1; }

static void learn_memories(Client *known, PJRT_Device *device) {
  PJRT_Device_AddressableMemories_Args args = {SIZED(PJRT_Device_AddressableMemories_Args),
                                               .device = device};
  if (backend->PJRT_Device_AddressableMemories(&args) != NULL || args.num_memories == 0) return;
  const size_t count = known->memories_count + args.num_memories;
  known->memories =
      reallocate(known->memories, count, sizeof *known->memories, "a client's memories");
  memcpy(known->memories + known->memories_count, args.memories,
         args.num_memories * sizeof *known->memories);
  known->memories_count = count;
}

void devices_learn(PJRT_Client *client) {
  PJRT_Client_Devices_Args args = {SIZED(PJRT_Client_Devices_Args), .client = client};
  backend->PJRT_Client_Devices(&args);
  Client *known = allocate(1, sizeof *known, "a client");
  known->own = allocate(args.num_devices, sizeof *known->own, "a client's devices");
  for (size_t i = 0; i < args.num_devices; ++i) {
    if (!identity_is_own(device_id(args.devices[i]))) continue;
    known->own[known->own_count++] = args.devices[i];
    learn_memories(known, args.devices[i]);
  }
  pthread_mutex_lock(&lock);
  known_add(&clients, client, known);
  process = getpid();
  pthread_mutex_unlock(&lock);
}

void devices_forget(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  Client *known = known_take(&clients, client);
  pthread_mutex_unlock(&lock);
  if (known == NULL) return;
  free(known->own);
  free(known->memories);
  free(known);
}

void devices_forget_executable(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  OwnDevices *own = known_take(&executables, executable);
  pthread_mutex_unlock(&lock);
  free(own);
}

// Return whether this very process has created a client, and not one that it was forked from.
VIRTUAL_TPU_EXPORT int virtual_tpu_has_client(void) { return process == getpid(); }

PJRT_Error *devices_check_process(void) {
  const pid_t here = getpid();
  if (process == 0 || process == here) return NULL;
  return error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                   "process %d was forked after process %d had created its client, "
                   "whose threads a fork does not have: fork before the first use of a device",
                   (int)here, (int)process);
}

// Return what is known of a client. As long as the client lives, that stays where it is.
static const Client *find(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  const Client *known = known_find(clients, client);
  pthread_mutex_unlock(&lock);
  if (known == NULL) abort();
  return known;
}

PJRT_Client *devices_client_of(const PJRT_Device *device) {
  const void *client = NULL;
  pthread_mutex_lock(&lock);
  for (const Known *entry = clients; entry != NULL && client == NULL; entry = entry->next) {
    const Client *known = (const Client *)entry;
    for (size_t i = 0; i < known->own_count; ++i) {
      if (known->own[i] == device) client = entry->object;
    }
  }
  pthread_mutex_unlock(&lock);
  return (PJRT_Client *)client;
}

static PJRT_Error *addressable(PJRT_Client_AddressableDevices_Args *args) {
  const Client *client = find(args->client);
  args->addressable_devices = client->own;
  args->num_addressable_devices = client->own_count;
  return NULL;
}

static PJRT_Error *memories(PJRT_Client_AddressableMemories_Args *args) {
  if (is_whole()) return bridge_PJRT_Client_AddressableMemories(args);
  const Client *client = find(args->client);
  args->addressable_memories = client->memories;
  args->num_addressable_memories = client->memories_count;
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

// Say no: else JAX reads a buffer where it lies, as it can't on a TPU, and without asking for its
// error.
static PJRT_Error *is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args) {
  args->is_on_cpu = 0;
  return NULL;
}

static PJRT_Error *process_index(PJRT_Client_ProcessIndex_Args *args) {
  args->process_index = identity.process;
  return NULL;
}

static PJRT_Error *process_of(PJRT_DeviceDescription_ProcessIndex_Args *args) {
  args->process_index = identity_process_of(description_id(args->device_description));
  return NULL;
}

static PJRT_Error *local_id(PJRT_Device_LocalHardwareId_Args *args) {
  args->local_hardware_id = identity_local(device_id(args->device));
  return NULL;
}

static PJRT_Error *lookup(PJRT_Client_LookupAddressableDevice_Args *args) {
  const Client *client = find(args->client);
  for (size_t i = 0; i < client->own_count; ++i) {
    if (identity_local(device_id(client->own[i])) != args->local_hardware_id) continue;
    args->addressable_device = client->own[i];
    return NULL;
  }
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT, "local device %d: this process has %zu",
                   args->local_hardware_id, client->own_count);
}

static OwnDevices *keep(const PJRT_LoadedExecutable_AddressableDevices_Args *all) {
  const size_t count = all->num_addressable_devices;
  OwnDevices *own =
      allocate(1, sizeof *own + count * sizeof own->devices[0], "an executable's devices");
  for (size_t i = 0; i < count; ++i) {
    PJRT_Device *device = all->addressable_devices[i];
    if (identity_is_own(device_id(device))) own->devices[own->count++] = device;
  }
  return known_add(&executables, all->executable, own);
}

// Return an executable's devices without those of other processes.
static PJRT_Error *of_executable(PJRT_LoadedExecutable_AddressableDevices_Args *args) {
  PJRT_Error *error = bridge_PJRT_LoadedExecutable_AddressableDevices(args);
  if (error != NULL || is_whole()) return error;
  pthread_mutex_lock(&lock);
  const OwnDevices *own = known_find(executables, args->executable);
  if (own == NULL) own = keep(args);
  pthread_mutex_unlock(&lock);
  args->addressable_devices = (PJRT_Device *const *)own->devices;
  args->num_addressable_devices = own->count;
  return NULL;
}

// Take no notice of which processes live, which JAX says after jax.distributed.initialize in an
// array of structs whose size is its own. The CPU client, which knows one process, has no use for
// it.
static PJRT_Error *process_info(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *default_assignment(PJRT_Client_DefaultDeviceAssignment_Args *args) {
  if (args->default_assignment == NULL) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "PJRT_Client_DefaultDeviceAssignment: no array to write to");
  }
  return bridge_PJRT_Client_DefaultDeviceAssignment(args);
}

void devices_fill(PJRT_Api *api) {
  api->PJRT_Client_DefaultDeviceAssignment = default_assignment;
  api->PJRT_Buffer_IsOnCpu = is_on_cpu;
  api->PJRT_Client_AddressableDevices = addressable;
  api->PJRT_Client_AddressableMemories = memories;
  api->PJRT_Client_LookupAddressableDevice = lookup;
  api->PJRT_Client_ProcessIndex = process_index;
  api->PJRT_Client_UpdateGlobalProcessInfo = process_info;
  api->PJRT_Device_AddressableMemories = memories_of;
  api->PJRT_Device_IsAddressable = is_addressable;
  api->PJRT_Device_LocalHardwareId = local_id;
  api->PJRT_DeviceDescription_ProcessIndex = process_of;
  api->PJRT_LoadedExecutable_AddressableDevices = of_executable;
}

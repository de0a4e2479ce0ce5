#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/api.h"

// In a job of several processes each has a CPU client with the devices of all, of which it may
// address its own. That one process has the devices of all is what lets any of them compile a
// program for all.

// A process may have several clients, as one of torch_xla and one of JAX.
typedef struct Known {
  struct Known *next;
  const PJRT_Client *client;
  PJRT_Device **own;
  PJRT_Memory **memories;
  size_t own_count, memories_count;
} Known;

// The devices of an executable that this process may address: PJRT wants an array that lives as
// long as the executable.
typedef struct Kept {
  struct Kept *next;
  const PJRT_LoadedExecutable *executable;
  size_t count;
  PJRT_Device *devices[];
} Kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Known *known;
static Kept *kept;
static pid_t process;  // that created the newest client

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

static int is_whole(void) { return identity.processes == 1; }

static void learn_memories(Known *one, PJRT_Device *device) {
  PJRT_Device_AddressableMemories_Args args = {
      .struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, .device = device};
  if (backend->PJRT_Device_AddressableMemories(&args) != NULL || args.num_memories == 0) return;
  const size_t count = one->memories_count + args.num_memories;
  one->memories = reallocate(one->memories, count, sizeof *one->memories, "a client's memories");
  for (size_t i = 0; i < args.num_memories; ++i) {
    one->memories[one->memories_count++] = args.memories[i];
  }
}

void devices_learn(PJRT_Client *client) {
  PJRT_Client_Devices_Args args = {.struct_size = PJRT_Client_Devices_Args_STRUCT_SIZE,
                                   .client = client};
  backend->PJRT_Client_Devices(&args);
  Known *one = allocate(1, sizeof *one, "a client");
  one->own = allocate(args.num_devices, sizeof *one->own, "a client's devices");
  one->client = client;
  for (size_t i = 0; i < args.num_devices; ++i) {
    if (!identity_is_own(device_id(args.devices[i]))) continue;
    one->own[one->own_count++] = args.devices[i];
    learn_memories(one, args.devices[i]);
  }
  pthread_mutex_lock(&lock);
  one->next = known;
  known = one;
  process = getpid();
  pthread_mutex_unlock(&lock);
}

void devices_forget(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  Known **link = &known;
  while (*link != NULL && (*link)->client != client) link = &(*link)->next;
  Known *one = *link;
  if (one != NULL) *link = one->next;
  pthread_mutex_unlock(&lock);
  if (one == NULL) return;
  free(one->own);
  free(one->memories);
  free(one);
}

void devices_forget_executable(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Kept **link = &kept;
  while (*link != NULL && (*link)->executable != executable) link = &(*link)->next;
  Kept *one = *link;
  if (one != NULL) *link = one->next;
  pthread_mutex_unlock(&lock);
  free(one);
}

// Whether this very process has created a client.
VIRTUAL_TPU_EXPORT int virtual_tpu_has_client(void) { return process == getpid(); }

PJRT_Error *devices_check_process(void) {
  const pid_t here = getpid();
  if (process == 0 || process == here) return NULL;
  return error_new(PJRT_Error_Code_FAILED_PRECONDITION,
                   "virtual TPU: process %d was forked after process %d had created its client, "
                   "whose threads a fork does not have: fork before the first use of a device",
                   (int)here, (int)process);
}

// What is known of a client: as long as it lives, that stays where it is.
static const Known *find(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  const Known *one = known;
  while (one != NULL && one->client != client) one = one->next;
  pthread_mutex_unlock(&lock);
  if (one == NULL) abort();
  return one;
}

PJRT_Client *devices_client_of(const PJRT_Device *device) {
  PJRT_Client *found = NULL;
  pthread_mutex_lock(&lock);
  for (const Known *one = known; one != NULL && found == NULL; one = one->next) {
    for (size_t i = 0; i < one->own_count; ++i) {
      if (one->own[i] == device) found = (PJRT_Client *)one->client;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static PJRT_Error *addressable(PJRT_Client_AddressableDevices_Args *args) {
  const Known *one = find(args->client);
  args->addressable_devices = one->own;
  args->num_addressable_devices = one->own_count;
  return NULL;
}

static PJRT_Error *memories(PJRT_Client_AddressableMemories_Args *args) {
  if (is_whole()) return bridge_PJRT_Client_AddressableMemories(args);
  const Known *one = find(args->client);
  args->addressable_memories = one->memories;
  args->num_addressable_memories = one->memories_count;
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

// Else JAX reads a buffer where it lies, as it can't on a TPU, and without asking for its error.
static PJRT_Error *is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args) {
  args->is_on_cpu = 0;
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

static PJRT_Error *local_id(PJRT_Device_LocalHardwareId_Args *args) {
  args->local_hardware_id = identity_local(device_id(args->device));
  return NULL;
}

static PJRT_Error *lookup(PJRT_Client_LookupAddressableDevice_Args *args) {
  const Known *one = find(args->client);
  if (args->local_hardware_id < 0 || (size_t)args->local_hardware_id >= one->own_count) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: local device %d: this process has %zu", args->local_hardware_id,
                     one->own_count);
  }
  args->addressable_device = one->own[args->local_hardware_id];
  return NULL;
}

static Kept *keep(const PJRT_LoadedExecutable_AddressableDevices_Args *found) {
  const size_t count = found->num_addressable_devices;
  Kept *one = allocate(1, sizeof *one + count * sizeof one->devices[0], "an executable's devices");
  one->executable = found->executable;
  for (size_t i = 0; i < count; ++i) {
    PJRT_Device *device = found->addressable_devices[i];
    if (identity_is_own(device_id(device))) one->devices[one->count++] = device;
  }
  one->next = kept;
  return kept = one;
}

// The executable's own devices, without those of other processes.
static PJRT_Error *of_executable(PJRT_LoadedExecutable_AddressableDevices_Args *args) {
  PJRT_Error *error = bridge_PJRT_LoadedExecutable_AddressableDevices(args);
  if (error != NULL || is_whole()) return error;
  pthread_mutex_lock(&lock);
  Kept *one = kept;
  while (one != NULL && one->executable != args->executable) one = one->next;
  if (one == NULL) one = keep(args);
  pthread_mutex_unlock(&lock);
  args->addressable_devices = one->devices;
  args->num_addressable_devices = one->count;
  return NULL;
}

// After jax.distributed.initialize JAX says which processes live, in an array of structs whose size
// is its own. The CPU client, which knows one process, has no use for it.
static PJRT_Error *process_info(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  (void)args;
  return NULL;
}

void devices_fill(PJRT_Api *api) {
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

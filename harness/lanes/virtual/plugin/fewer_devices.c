#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

// A client of another library that shows the first few of its devices, and the memories of those.
typedef struct {
  PJRT_Memory *memory;
  PJRT_Device **devices;  // the shown ones that address it
  size_t count;
} ShownMemory;

typedef struct {
  Known known;
  PJRT_Device **devices;  // the library's own list, of which the first `count` are shown
  size_t count;
  ShownMemory *memories;
  PJRT_Memory **addressable;
  size_t memory_count;
} ShownClient;

static PJRT_Api behind;  // the entries that these stand in front of
static int most;
static Known *clients;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_shown(const ShownClient *client, const PJRT_Device *device) {
  for (size_t i = 0; i < client->count; ++i) {
    if (client->devices[i] == device) return 1;
  }
  return 0;
}

static void forget(ShownClient *client) {
  if (client == NULL) return;
  for (size_t i = 0; i < client->memory_count; ++i) free(client->memories[i].devices);
  free(client->memories);
  free(client->addressable);
  free(client);
}

static void drop(PJRT_Error *error) {
  PJRT_Error_Destroy_Args args = {SIZED(PJRT_Error_Destroy_Args), .error = error};
  behind.PJRT_Error_Destroy(&args);
}

// Keep a memory if a shown device addresses it.
static void show_memory(ShownClient *client, PJRT_Memory *memory) {
  PJRT_Memory_AddressableByDevices_Args args = {SIZED(PJRT_Memory_AddressableByDevices_Args),
                                                .memory = memory};
  PJRT_Error *error = behind.PJRT_Memory_AddressableByDevices(&args);
  if (error != NULL) {
    drop(error);
    return;
  }
  ShownMemory shown = {.memory = memory};
  shown.devices = allocate(args.num_devices + 1, sizeof *shown.devices, "a memory's devices");
  for (size_t i = 0; i < args.num_devices; ++i) {
    if (is_shown(client, args.devices[i])) shown.devices[shown.count++] = args.devices[i];
  }
  if (shown.count == 0) {
    free(shown.devices);
    return;
  }
  client->addressable[client->memory_count] = memory;
  client->memories[client->memory_count++] = shown;
}

// Choose what a client shows; NULL if the library can't say which devices it has.
static ShownClient *show(PJRT_Client *handle) {
  PJRT_Client_Devices_Args devices = {SIZED(PJRT_Client_Devices_Args), .client = handle};
  PJRT_Client_AddressableMemories_Args memories = {SIZED(PJRT_Client_AddressableMemories_Args),
                                                   .client = handle};
  PJRT_Error *error = behind.PJRT_Client_Devices(&devices);
  if (error == NULL) error = behind.PJRT_Client_AddressableMemories(&memories);
  if (error != NULL) {
    drop(error);
    return NULL;
  }
  ShownClient *client = allocate(1, sizeof *client, "a client's devices");
  client->devices = (PJRT_Device **)devices.devices;
  client->count = devices.num_devices < (size_t)most ? devices.num_devices : (size_t)most;
  const size_t count = memories.num_addressable_memories;
  client->memories = allocate(count + 1, sizeof *client->memories, "a client's memories");
  client->addressable = allocate(count + 1, sizeof *client->addressable, "a client's memories");
  for (size_t i = 0; i < count; ++i) show_memory(client, memories.addressable_memories[i]);
  return known_add(&clients, handle, client);
}

// A client asks for its devices before it does anything with one, so that is early enough.
static const ShownClient *shown_client(PJRT_Client *handle) {
  pthread_mutex_lock(&lock);
  const ShownClient *client = known_find(clients, handle);
  if (client == NULL) client = show(handle);
  pthread_mutex_unlock(&lock);
  return client;
}

static PJRT_Error *destroy(PJRT_Client_Destroy_Args *args) {
  pthread_mutex_lock(&lock);
  ShownClient *client = known_take(&clients, args->client);
  pthread_mutex_unlock(&lock);
  forget(client);
  return behind.PJRT_Client_Destroy(args);
}

static PJRT_Error *devices(PJRT_Client_Devices_Args *args) {
  PJRT_Error *error = behind.PJRT_Client_Devices(args);
  const ShownClient *client = error == NULL ? shown_client(args->client) : NULL;
  if (client != NULL) args->num_devices = client->count;
  return error;
}

static PJRT_Error *addressable_devices(PJRT_Client_AddressableDevices_Args *args) {
  PJRT_Error *error = behind.PJRT_Client_AddressableDevices(args);
  const ShownClient *client = error == NULL ? shown_client(args->client) : NULL;
  if (client == NULL) return error;
  size_t count = 0;
  while (count < args->num_addressable_devices &&
         is_shown(client, args->addressable_devices[count])) {
    ++count;
  }
  args->num_addressable_devices = count;
  return NULL;
}

static PJRT_Error *memories(PJRT_Client_AddressableMemories_Args *args) {
  PJRT_Error *error = behind.PJRT_Client_AddressableMemories(args);
  const ShownClient *client = error == NULL ? shown_client(args->client) : NULL;
  if (client == NULL) return error;
  args->addressable_memories = client->addressable;
  args->num_addressable_memories = client->memory_count;
  return NULL;
}

static PJRT_Error *memory_devices(PJRT_Memory_AddressableByDevices_Args *args) {
  PJRT_Error *error = behind.PJRT_Memory_AddressableByDevices(args);
  pthread_mutex_lock(&lock);
  for (Known *each = clients; error == NULL && each != NULL; each = each->next) {
    const ShownClient *client = (const ShownClient *)each;
    for (size_t i = 0; i < client->memory_count; ++i) {
      if (client->memories[i].memory != args->memory) continue;
      args->devices = client->memories[i].devices;
      args->num_devices = client->memories[i].count;
    }
  }
  pthread_mutex_unlock(&lock);
  return error;
}

void fewer_fill(PJRT_Api *api) {
  if (!number_whole(getenv("VIRTUAL_TPU_FORWARD_DEVICES"), 1, INT_MAX, &most)) return;
  behind = *api;
  api->PJRT_Client_Destroy = destroy;
  api->PJRT_Client_Devices = devices;
  api->PJRT_Client_AddressableDevices = addressable_devices;
  api->PJRT_Client_AddressableMemories = memories;
  api->PJRT_Memory_AddressableByDevices = memory_devices;
}

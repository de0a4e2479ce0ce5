#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

enum { MOST_DEVICES = 4096, MOST_GIB = 4096 };

typedef struct {
  int64_t coordinates[3];
  PJRT_NamedValue attributes[4];
  char text[80];
  int process, own, local;
} Device;

Identity identity;
static Device *devices;

static PJRT_Error *wrong(const char *name, const char *value, const char *expected) {
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT, "virtual TPU: %s=%s: expected %s", name,
                   value == NULL ? "(unset)" : value, expected);
}

static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value != NULL && *value != '\0' ? value : NULL;
}

// How many processes the client of this one shares the devices with, itself included.
VIRTUAL_TPU_EXPORT int virtual_tpu_process_count(void) { return identity.processes; }

int identity_total(void) { return identity.slices * identity.devices; }

static PJRT_NamedValue number(const char *name, int64_t value) {
  return (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                           .name = name,
                           .name_size = strlen(name),
                           .type = PJRT_NamedValue_kInt64,
                           .int64_value = value,
                           .value_size = 1};
}

// A slice's mesh of chips is cut into blocks, one a process; x counts first, as for chips.
static int process_of(int slice, const int64_t *at) {
  const int *grid = identity.grid;
  int block[3];
  for (int i = 0; i < 3; ++i) block[i] = (int)at[i] / (identity.bounds[i] / grid[i]);
  const int inside = block[0] + grid[0] * (block[1] + grid[1] * block[2]);
  const int all_here = identity.slices_here == identity.slices;
  return all_here ? inside : slice * grid[0] * grid[1] * grid[2] + inside;
}

static void describe(Device *device, int id) {
  const int local = id % identity.devices, slice = id / identity.devices;
  const int chip = local / identity.of_chip, core = local % identity.of_chip;
  const int *bounds = identity.bounds;
  int64_t *at = device->coordinates;
  at[0] = chip % bounds[0];
  at[1] = chip / bounds[0] % bounds[1];
  at[2] = chip / (bounds[0] * bounds[1]);
  device->attributes[0] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                                            .name = "coords",
                                            .name_size = strlen("coords"),
                                            .type = PJRT_NamedValue_kInt64List,
                                            .int64_array_value = at,
                                            .value_size = 3};
  device->attributes[1] = number("core_on_chip", core);
  device->attributes[2] = number("num_cores", identity.cores);
  device->attributes[3] = number("slice_index", slice);
  device->process = process_of(slice, at);
  device->own = device->process == identity.process;
  snprintf(device->text, sizeof device->text, "TPU_%d(process=%d,(%d,%d,%d,%d))", id,
           device->process, (int)at[0], (int)at[1], (int)at[2], core);
}

// In a job of several processes each has one slice, and MEGASCALE_SLICE_ID says which.
static PJRT_Error *read_slices(void) {
  const char *count = variable("MEGASCALE_NUM_SLICES");
  int slices = identity.slices, slice;
  if (count != NULL && !number_whole(count, slices, slices, &slices)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "virtual TPU: MEGASCALE_NUM_SLICES=%s, but VIRTUAL_TPU_TOPOLOGY=%s has %d",
                     count, getenv("VIRTUAL_TPU_TOPOLOGY"), identity.slices);
  }
  identity.slices_here = identity.slices;
  identity.first_slice = 0;
  if (variable("MEGASCALE_COORDINATOR_ADDRESS") == NULL || identity.slices == 1) return NULL;
  const char *id = variable("MEGASCALE_SLICE_ID");
  if (!number_whole(id, 0, identity.slices - 1, &slice)) {
    char expected[64];
    snprintf(expected, sizeof expected, "a slice from 0 to %d", identity.slices - 1);
    return wrong("MEGASCALE_SLICE_ID", id, expected);
  }
  identity.slices_here = 1;
  identity.first_slice = slice;
  return NULL;
}

// So many numbers of devices, with `between` in between and nothing else.
static int numbers(const char *text, char between, int count, int *found) {
  for (int i = 0; i < count; ++i) {
    if (text == NULL || !number_read(&text, 1, MOST_DEVICES, &found[i])) return 0;
    if (*text++ != (i + 1 < count ? between : '\0')) return 0;
  }
  return 1;
}

// Whether TPU_VISIBLE_CHIPS lists as many chips as the slice has: that decides, whatever the
// bounds.
static int sees_all_chips(void) {
  const char *visible = variable("TPU_VISIBLE_CHIPS");
  int count = visible == NULL ? 0 : 1;
  for (; visible != NULL && *visible != '\0'; ++visible) count += *visible == ',';
  return count * identity.of_chip == identity.devices;
}

// The chips that this process may use, by the variables that libtpu reads them from:
// https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/tpu.py
static PJRT_Error *read_processes(void) {
  const char *grid = variable("TPU_PROCESS_BOUNDS"), *task = variable("CLOUD_TPU_TASK_ID");
  const char *chips = variable("TPU_CHIPS_PER_PROCESS_BOUNDS");
  int *bounds = identity.bounds, block[3];
  const int of_slices = identity.slices_here < identity.slices;
  for (int i = 0; i < 3; ++i) identity.grid[i] = 1;
  identity.process = 0;
  identity.processes = of_slices ? identity.slices : 1;
  if (grid != NULL) {
    if (!numbers(grid, ',', 3, identity.grid)) return wrong("TPU_PROCESS_BOUNDS", grid, "X,Y,Z");
    if (chips == NULL) return wrong("TPU_CHIPS_PER_PROCESS_BOUNDS", chips, "X,Y,Z");
    if (!numbers(chips, ',', 3, block))
      return wrong("TPU_CHIPS_PER_PROCESS_BOUNDS", chips, "X,Y,Z");
    const int processes = identity.grid[0] * identity.grid[1] * identity.grid[2];
    const int64_t all = (int64_t)processes * block[0] * block[1] * block[2] * identity.of_chip;
    if (processes == 1 && all < identity.devices && sees_all_chips()) {
      // https://github.com/pytorch/xla/blob/v2.9.0/test/pjrt/test_runtime_tpu.py
      memcpy(block, bounds, sizeof block);
    } else if (processes == 1 && all < identity.devices) {
      // A world of its own within the machine: nobody else's chips are visible.
      memcpy(bounds, block, sizeof block);
      identity.devices = (int)all;
    }
    for (int i = 0; i < 3; ++i) {
      if (identity.grid[i] * block[i] == bounds[i]) continue;
      return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                       "virtual TPU: TPU_PROCESS_BOUNDS=%s by TPU_CHIPS_PER_PROCESS_BOUNDS=%s: "
                       "expected %d,%d,%d in all, the chips of a slice",
                       grid, chips, bounds[0], bounds[1], bounds[2]);
    }
    if (processes > 1 && !number_whole(task, 0, processes - 1, &identity.process)) {
      char expected[64];
      snprintf(expected, sizeof expected, "a process of the slice, from 0 to %d", processes - 1);
      return wrong("CLOUD_TPU_TASK_ID", task, expected);
    }
    identity.processes *= processes;
    if (of_slices) identity.process += identity.first_slice * processes;
  } else if (of_slices) {
    identity.process = identity.first_slice;
  }
  return NULL;
}

static PJRT_Error *read_environment(void) {
  const char *topology = variable("VIRTUAL_TPU_TOPOLOGY");
  int sizes[2];
  int *bounds = identity.bounds;
  if (!numbers(topology, 'x', 2, sizes) || sizes[1] > MOST_DEVICES / sizes[0]) {
    return wrong("VIRTUAL_TPU_TOPOLOGY", topology, "SLICESxDEVICES, as 2x4");
  }
  identity.slices = sizes[0];
  identity.devices = sizes[1];
  const char *chips = variable("VIRTUAL_TPU_BOUNDS");
  if (!numbers(chips, ',', 3, bounds) || bounds[0] > MOST_DEVICES / bounds[1] ||
      bounds[0] * bounds[1] > MOST_DEVICES / bounds[2] ||
      identity.devices % (bounds[0] * bounds[1] * bounds[2]) != 0 ||
      (identity.of_chip = identity.devices / (bounds[0] * bounds[1] * bounds[2])) > 2) {
    return wrong("VIRTUAL_TPU_BOUNDS", chips,
                 "X,Y,Z, of chips that are one or two devices of the slice each");
  }
  const char *kind = variable("VIRTUAL_TPU_KIND"), *version = variable("VIRTUAL_TPU_PLATFORM");
  const char *cores = variable("VIRTUAL_TPU_CORES");
  if (kind == NULL) return wrong("VIRTUAL_TPU_KIND", kind, "a device kind, as TPU v6 lite");
  if (version == NULL) return wrong("VIRTUAL_TPU_PLATFORM", version, "a platform version");
  if (!number_whole(cores, 1, 2, &identity.cores)) {
    return wrong("VIRTUAL_TPU_CORES", cores, "1 or 2");
  }
  const char *memory = variable("VIRTUAL_TPU_MEMORY");
  int gib;
  if (!number_whole(memory, 1, MOST_GIB, &gib)) {
    return wrong("VIRTUAL_TPU_MEMORY", memory, "GiB of a device, as 32");
  }
  identity.memory = (int64_t)gib << 30;
  snprintf(identity.kind, sizeof identity.kind, "%s", kind);
  snprintf(identity.version, sizeof identity.version, "%s", version);
  PJRT_Error *error = read_slices();
  return error != NULL ? error : read_processes();
}

// The first and the last chip of each slice are said to be where the other is.
static void change_coordinates(void) {
  if (identity.devices == identity.of_chip || !answers_wrongly("coordinates-swapped")) return;
  for (int first = 0; first < identity_total(); first += identity.devices) {
    for (int core = 0; core < identity.of_chip; ++core) {
      Device *a = &devices[first + core];
      Device *b = &devices[first + identity.devices - identity.of_chip + core];
      for (int i = 0; i < 3; ++i) {
        const int64_t kept = a->coordinates[i];
        a->coordinates[i] = b->coordinates[i];
        b->coordinates[i] = kept;
      }
    }
  }
}

// The first device of each slice is said to be of the next one.
static void change_slices(void) {
  if (identity.slices == 1 || !answers_wrongly("slice-index-off")) return;
  for (int slice = 0; slice < identity.slices; ++slice) {
    PJRT_NamedValue *said = &devices[slice * identity.devices].attributes[3];
    said->int64_value = (slice + 1) % identity.slices;
  }
}

// Once: a second client of this process must have the devices of the first.
PJRT_Error *identity_read(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  PJRT_Error *error = devices == NULL ? read_environment() : NULL;
  if (error == NULL && devices == NULL) {
    devices = allocate((size_t)identity_total(), sizeof *devices, "the devices");
    int own = 0;
    for (int id = 0; id < identity_total(); ++id) {
      describe(&devices[id], id);
      devices[id].local = devices[id].own ? own++ : -1;
    }
    change_coordinates();
    change_slices();
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int identity_process_of(int id) { return devices[id].process; }
int identity_is_own(int id) { return devices[id].own; }
int identity_local(int id) { return devices[id].local; }

static const Device *device_of(PJRT_DeviceDescription *description) {
  PJRT_DeviceDescription_Id_Args args = {.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE,
                                         .device_description = description};
  backend->PJRT_DeviceDescription_Id(&args);
  return &devices[args.id];
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args) {
  args->platform_name = "tpu";
  args->platform_name_size = 3;
  return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = identity.version;
  args->platform_version_size = strlen(identity.version);
  return NULL;
}

static PJRT_Error *topology_name(PJRT_TopologyDescription_PlatformName_Args *args) {
  args->platform_name = "tpu";
  args->platform_name_size = 3;
  return NULL;
}

static PJRT_Error *topology_version(PJRT_TopologyDescription_PlatformVersion_Args *args) {
  args->platform_version = identity.version;
  args->platform_version_size = strlen(identity.version);
  return NULL;
}

// libtpu says slice_index only when there is more than one slice.
static PJRT_Error *attributes(PJRT_DeviceDescription_Attributes_Args *args) {
  args->attributes = device_of(args->device_description)->attributes;
  args->num_attributes = identity.slices > 1 ? 4 : 3;
  return NULL;
}

static PJRT_Error *kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = identity.kind;
  args->device_kind_size = strlen(identity.kind);
  return NULL;
}

static PJRT_Error *debug_string(PJRT_DeviceDescription_DebugString_Args *args) {
  args->debug_string = device_of(args->device_description)->text;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

static PJRT_Error *to_string(PJRT_DeviceDescription_ToString_Args *args) {
  args->to_string = device_of(args->device_description)->text;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}

// All descriptions are those of a client's devices: the CPU plugin would describe CPUs here.
static PJRT_Error *no_topology(PJRT_TopologyDescription_Create_Args *args) {
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "virtual TPU: topology %.*s: it has no compiler for a TPU that is not there",
                   (int)args->topology_name_size, args->topology_name);
}

void identity_fill(PJRT_Api *api) {
  api->PJRT_TopologyDescription_Create = no_topology;
  api->PJRT_Client_PlatformName = platform_name;
  api->PJRT_Client_PlatformVersion = platform_version;
  api->PJRT_TopologyDescription_PlatformName = topology_name;
  api->PJRT_TopologyDescription_PlatformVersion = topology_version;
  api->PJRT_DeviceDescription_Attributes = attributes;
  api->PJRT_DeviceDescription_Kind = kind;
  api->PJRT_DeviceDescription_DebugString = debug_string;
  api->PJRT_DeviceDescription_ToString = to_string;
}

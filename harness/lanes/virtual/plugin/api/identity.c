#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

enum { MOST_DEVICES = 4096, MOST_GIB = 4096 };

typedef struct {
  int at[3];  // of its chip
  int slice, core, process, own, local, index;
  DeviceDescription description;
} Device;

Identity identity;
static Device *devices;
static int hardware[MOST_DEVICES];  // numbers of the own devices

static PJRT_Error *wrong(const char *name, const char *value, const char *expected) {
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT, "%s=%s: expected %s", name,
                   value == NULL ? "(unset)" : value, expected);
}

// How many processes the client of this one shares the devices with, itself included.
VIRTUAL_TPU_EXPORT int virtual_tpu_process_count(void) { return identity.processes; }

int identity_total(void) { return identity.slices * identity.devices; }

// A slice's mesh of chips is cut into blocks, one a process; x counts first, as for chips.
static int process_of(int slice, const int *at) {
  const int *grid = identity.grid;
  int block[3];
  for (int i = 0; i < 3; ++i) block[i] = at[i] / (identity.bounds[i] / grid[i]);
  const int inside = block[0] + grid[0] * (block[1] + grid[1] * block[2]);
  const int all_here = identity.slices_here == identity.slices;
  return all_here ? inside : slice * grid[0] * grid[1] * grid[2] + inside;
}

static void locate(Device *device, int id) {
  const int local = id % identity.devices, chip = local / identity.of_chip;
  const int *bounds = identity.bounds;
  device->slice = id / identity.devices;
  device->core = local % identity.of_chip;
  device->at[0] = chip % bounds[0];
  device->at[1] = chip / bounds[0] % bounds[1];
  device->at[2] = chip / (bounds[0] * bounds[1]);
  device->process = process_of(device->slice, device->at);
  device->own = device->process == identity.process;
}

// In a job of several processes each has one slice, and a variable says which.
static PJRT_Error *read_slices(void) {
  const char *count = launch_value(LAUNCH_SLICES);
  int slices = identity.slices, slice;
  if (count != NULL && !number_whole(count, slices, slices, &slices)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT, "%s=%s, but VIRTUAL_TPU_TOPOLOGY=%s has %d",
                     launch_name(LAUNCH_SLICES), count, getenv("VIRTUAL_TPU_TOPOLOGY"),
                     identity.slices);
  }
  identity.slices_here = identity.slices;
  identity.first_slice = 0;
  if (launch_value(LAUNCH_COORDINATOR) == NULL || identity.slices == 1) return NULL;
  const char *id = launch_value(LAUNCH_SLICE);
  if (!number_whole(id, 0, identity.slices - 1, &slice)) {
    char expected[64];
    snprintf(expected, sizeof expected, "a slice from 0 to %d", identity.slices - 1);
    return wrong(launch_name(LAUNCH_SLICE), id, expected);
  }
  identity.slices_here = 1;
  identity.first_slice = slice;
  return NULL;
}

// So many numbers of devices, with `between` in between and nothing else.
static int numbers(const char *text, char between, int count, int *out) {
  for (int i = 0; i < count; ++i) {
    if (text == NULL || !number_read(&text, 1, MOST_DEVICES, &out[i])) return 0;
    if (*text++ != (i + 1 < count ? between : '\0')) return 0;
  }
  return 1;
}

// Whether the visible chips are as many as the slice has: that decides, whatever the
// bounds.
static int sees_all_chips(void) {
  const char *visible = launch_value(LAUNCH_VISIBLE_CHIPS);
  int count = visible == NULL ? 0 : 1;
  for (; visible != NULL && *visible != '\0'; ++visible) count += *visible == ',';
  return count * identity.of_chip == identity.devices;
}

// The chips that this process may use. A TPU's are in the variables that libtpu reads:
// https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/tpu.py
static PJRT_Error *read_processes(void) {
  const char *grid = launch_value(LAUNCH_PROCESS_BOUNDS), *task = launch_value(LAUNCH_PROCESS);
  const char *chips = launch_value(LAUNCH_CHIPS_PER_PROCESS);
  int *bounds = identity.bounds, block[3];
  const int of_slices = identity.slices_here < identity.slices;
  identity.process = 0;
  identity.processes = of_slices ? identity.slices : 1;
  if (grid != NULL) {
    if (!numbers(grid, ',', 3, identity.grid))
      return wrong(launch_name(LAUNCH_PROCESS_BOUNDS), grid, "X,Y,Z");
    if (chips == NULL) return wrong(launch_name(LAUNCH_CHIPS_PER_PROCESS), chips, "X,Y,Z");
    if (!numbers(chips, ',', 3, block))
      return wrong(launch_name(LAUNCH_CHIPS_PER_PROCESS), chips, "X,Y,Z");
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
                       "%s=%s by %s=%s: expected %d,%d,%d in all, the chips of a slice",
                       launch_name(LAUNCH_PROCESS_BOUNDS), grid,
                       launch_name(LAUNCH_CHIPS_PER_PROCESS), chips, bounds[0], bounds[1],
                       bounds[2]);
    }
    if (processes > 1 && !number_whole(task, 0, processes - 1, &identity.process)) {
      char expected[64];
      snprintf(expected, sizeof expected, "a process of the slice, from 0 to %d", processes - 1);
      return wrong(launch_name(LAUNCH_PROCESS), task, expected);
    }
    identity.processes *= processes;
    if (of_slices) identity.process += identity.first_slice * processes;
  } else if (of_slices) {
    identity.process = identity.first_slice;
  }
  return NULL;
}

static PJRT_Error *read_environment(const PJRT_Client_Create_Args *args) {
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
  const char *name = variable("VIRTUAL_TPU_NAME");
  if (name == NULL) return wrong("VIRTUAL_TPU_NAME", name, "a platform's name, as tpu");
  if (kind == NULL) return wrong("VIRTUAL_TPU_KIND", kind, "a device kind, as TPU v6 lite");
  if (version == NULL) return wrong("VIRTUAL_TPU_PLATFORM", version, "a platform version");
  const char *memory = variable("VIRTUAL_TPU_MEMORY");
  int gib;
  if (!number_whole(memory, 1, MOST_GIB, &gib)) {
    return wrong("VIRTUAL_TPU_MEMORY", memory, "GiB of a device, as 32");
  }
  identity.memory = (int64_t)gib << 30;
  snprintf(identity.name, sizeof identity.name, "%s", name);
  snprintf(identity.kind, sizeof identity.kind, "%s", kind);
  snprintf(identity.version, sizeof identity.version, "%s", version);
  for (int i = 0; i < MOST_DEVICES; ++i) hardware[i] = i;
  for (int i = 0; i < 3; ++i) identity.grid[i] = 1;
  if (place_is_given()) return place_read(args, hardware);
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
        const int kept = a->at[i];
        a->at[i] = b->at[i];
        b->at[i] = kept;
      }
    }
  }
}

// The first device of each slice is said to be of the next one.
static void change_slices(void) {
  if (identity.slices == 1 || !answers_wrongly("slice-index-off")) return;
  for (int slice = 0; slice < identity.slices; ++slice) {
    devices[slice * identity.devices].slice = (slice + 1) % identity.slices;
  }
}

// Once: a second client of this process must have the devices of the first.
PJRT_Error *identity_read(const PJRT_Client_Create_Args *args) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  PJRT_Error *error = devices == NULL ? read_environment(args) : NULL;
  if (error == NULL && devices == NULL) {
    devices = allocate((size_t)identity_total(), sizeof *devices, "the devices");
    static int of_process[MOST_DEVICES];
    int own = 0;
    for (int id = 0; id < identity_total(); ++id) {
      locate(&devices[id], id);
      devices[id].index = of_process[devices[id].process]++;
      devices[id].local = devices[id].own ? hardware[own++] : -1;
    }
    change_coordinates();
    change_slices();
    for (int id = 0; id < identity_total(); ++id) {
      const Device *at = &devices[id];
      const int numbers[DEVICE_NUMBERS] = {id,        at->process, at->slice, at->at[0],
                                           at->at[1], at->at[2],   at->core,  at->index};
      description_fill(&devices[id].description, numbers);
    }
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int identity_process_of(int id) { return devices[id].process; }
int identity_is_own(int id) { return devices[id].own; }
int identity_local(int id) { return devices[id].local; }

static const Device *device_of(PJRT_DeviceDescription *description) {
  return &devices[description_id(description)];
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args) {
  args->platform_name = identity.name;
  args->platform_name_size = strlen(identity.name);
  return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = identity.version;
  args->platform_version_size = strlen(identity.version);
  return NULL;
}

static PJRT_Error *topology_name(PJRT_TopologyDescription_PlatformName_Args *args) {
  args->platform_name = identity.name;
  args->platform_name_size = strlen(identity.name);
  return NULL;
}

static PJRT_Error *topology_version(PJRT_TopologyDescription_PlatformVersion_Args *args) {
  args->platform_version = identity.version;
  args->platform_version_size = strlen(identity.version);
  return NULL;
}

static PJRT_Error *attributes(PJRT_DeviceDescription_Attributes_Args *args) {
  const DeviceDescription *description = &device_of(args->device_description)->description;
  args->attributes = description->values;
  args->num_attributes = description->count;
  return NULL;
}

static PJRT_Error *kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = identity.kind;
  args->device_kind_size = strlen(identity.kind);
  return NULL;
}

static PJRT_Error *debug_string(PJRT_DeviceDescription_DebugString_Args *args) {
  args->debug_string = device_of(args->device_description)->description.text;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

static PJRT_Error *to_string(PJRT_DeviceDescription_ToString_Args *args) {
  args->to_string = device_of(args->device_description)->description.representation;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}

// All descriptions are those of a client's devices: the CPU plugin would describe CPUs here.
static PJRT_Error *no_topology(PJRT_TopologyDescription_Create_Args *args) {
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "topology %.*s: it has no compiler for a device that is not there",
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

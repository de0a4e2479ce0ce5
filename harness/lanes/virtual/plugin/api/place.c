#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

// A process's place in its job, on platforms whose launchers say it to the framework only: JAX
// hands it to each client that it creates, and which of its node's devices to use.
// https://github.com/jax-ml/jax/blob/jax-v0.7.1/jax/_src/xla_bridge.py (make_pjrt_c_api_client)

#define NODE_VARIABLE "VIRTUAL_TPU_NODE"

static const char PROCESS[] = "node_id", PROCESSES[] = "num_nodes", CHOSEN[] = "visible_devices";
static const char PARTITION[] = "partition_index";

enum { MOST_ON_NODE = 4096 };

static char *devices;  // those of this process, as 0:3,0:4 for two of node 0

typedef struct {
  int given, count, at[MOST_ON_NODE];
} Chosen;

static const PJRT_NamedValue *option(const PJRT_Client_Create_Args *args, const char *name) {
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue *value = &args->create_options[i];
    if (value->name_size == strlen(name) && memcmp(value->name, name, value->name_size) == 0) {
      return value;
    }
  }
  return NULL;
}

static PJRT_Error *read_number(const PJRT_Client_Create_Args *args, const char *name, int64_t most,
                               int *number) {
  const PJRT_NamedValue *value = option(args, name);
  if (value == NULL) return NULL;
  if (value->type != PJRT_NamedValue_kInt64 || value->int64_value < 0 ||
      value->int64_value > most) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "a client's option %s: expected a number from 0 to %d", name, (int)most);
  }
  *number = (int)value->int64_value;
  return NULL;
}

// Add a device to those chosen, unless it is there already or the node has none of that number.
static int choose(Chosen *chosen, int64_t device, int most) {
  if (device < 0 || device >= most) return 0;
  for (int i = 0; i < chosen->count; ++i) {
    if (chosen->at[i] == device) return 0;
  }
  chosen->at[chosen->count++] = (int)device;
  return 1;
}

// Read which of a node's devices the process sees. It counts those from 0, as the runtime does.
static PJRT_Error *read_visible(int of_node, Chosen *visible) {
  const char *name = launch_name(LAUNCH_VISIBLE_CHIPS), *text = getenv(name), *at = text;
  // An empty list, or -1, hides real devices only.
  visible->given = *name != '\0' && text != NULL && *text != '\0' && strcmp(text, "-1") != 0;
  if (!visible->given) {
    while (visible->count < of_node) choose(visible, visible->count, of_node);
    return NULL;
  }
  for (int device; number_read(&at, 0, of_node - 1, &device) && choose(visible, device, of_node);) {
    if (*at == '\0') return NULL;
    if (*at++ != ',') break;
  }
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "%s=%s: expected numbers of a node's %d devices, each once, as 0 or 0,1", name,
                   text, of_node);
}

static PJRT_Error *read_chosen(const PJRT_Client_Create_Args *args, int visible, Chosen *chosen) {
  const PJRT_NamedValue *value = option(args, CHOSEN);
  chosen->given = value != NULL;
  if (!chosen->given) return NULL;
  int right = value->type == PJRT_NamedValue_kInt64List && value->value_size > 0;
  for (size_t i = 0; right && i < value->value_size; ++i) {
    right = choose(chosen, value->int64_array_value[i], visible);
  }
  if (right) return NULL;
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "a client's option %s, such as local_device_ids: expected numbers of the %d "
                   "devices that the process sees, each once",
                   CHOSEN, visible);
}

// Have each of a node's processes take an equal part of what all of them see.
static void divide(Chosen *chosen, int count, int first) {
  chosen->count = 0;
  for (int i = 0; i < count; ++i) chosen->at[chosen->count++] = first + i;
}

static PJRT_Error *too_many(int processes, int on_node, int each, int of_node) {
  return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                   "a job of %d processes has %d on each node, and this one takes %d of the node's "
                   "%d devices: expected %d at most, as by local_device_ids or %s",
                   processes, on_node, each, of_node, of_node / on_node,
                   launch_name(LAUNCH_VISIBLE_CHIPS));
}

// Let each of so many processes have so many devices, in a row.
static void take_place(int process, int processes, int each) {
  const int of_slice = processes > 1 ? processes / identity.slices : 1;
  identity.process = process;
  identity.processes = processes;
  identity.devices = processes > 1 ? of_slice * each : each / identity.slices;
  identity.bounds[0] = identity.devices / identity.of_chip;
  identity.grid[0] = of_slice;
  identity.slices_here = processes > 1 ? 1 : identity.slices;
  identity.first_slice = processes > 1 ? process / of_slice : 0;
}

const char *place_devices(void) { return devices == NULL ? "-" : devices; }

// Note which devices of a node this process takes, counted as the node does.
static void note_devices(int node, const Chosen *visible, const Chosen *chosen) {
  size_t size;
  FILE *stream = open_memstream(&devices, &size);
  if (stream == NULL) abort();
  for (int i = 0; i < chosen->count; ++i) {
    fprintf(stream, "%s%d:%d", i == 0 ? "" : ",", node, visible->at[chosen->at[i]]);
  }
  fclose(stream);
}

int place_is_given(void) { return variable(NODE_VARIABLE) != NULL; }

PJRT_Error *place_read(const PJRT_Client_Create_Args *args, int *hardware) {
  const int total = identity_total();
  int of_node, process = 0, processes = 1, partition = -1;
  if (!number_whole(variable(NODE_VARIABLE), 1, total, &of_node)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT, NODE_VARIABLE "=%s: expected devices, as 8",
                     variable(NODE_VARIABLE));
  }
  PJRT_Error *error = read_number(args, PROCESSES, total, &processes);
  if (error == NULL) error = read_number(args, PROCESS, total - 1, &process);
  if (error == NULL) error = read_number(args, PARTITION, total, &partition);
  if (error != NULL) return error;
  if (processes <= 1) of_node = total;  // a process alone has the devices of all nodes
  const int nodes = total / of_node, on_node = processes / nodes;
  if (total % of_node != 0 || processes % nodes != 0 || on_node > of_node || process >= processes) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "process %d of a job of %d: expected as many processes on each of %d nodes, "
                     "from 1 to %d",
                     process, processes, nodes, of_node);
  }
  Chosen visible = {0}, chosen = {0};
  if ((error = read_visible(of_node, &visible)) != NULL) return error;
  if ((error = read_chosen(args, visible.count, &chosen)) != NULL) return error;
  if (!chosen.given) {
    const int is_shared = visible.count * on_node > of_node && visible.count % on_node == 0;
    const int count = is_shared ? visible.count / on_node : visible.count;
    divide(&chosen, count, is_shared ? process % on_node * count : 0);
  }
  if (chosen.count * on_node > of_node) return too_many(processes, on_node, chosen.count, of_node);
  if (processes <= 1 && chosen.count % identity.slices != 0) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "a process alone takes %d devices: expected as many of each of %d slices",
                     chosen.count, identity.slices);
  }
  take_place(process, processes < 1 ? 1 : processes, chosen.count);
  if (partition >= 0 && partition != identity.first_slice) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "a client's option %s is %d: expected %d, the slice of its devices", PARTITION,
                     partition, identity.first_slice);
  }
  for (int i = 0; i < chosen.count; ++i) hardware[i] = chosen.at[i];
  note_devices(process / on_node, &visible, &chosen);
  return NULL;
}

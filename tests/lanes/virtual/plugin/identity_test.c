// The devices of a job of 2x4 TPU v6e, through PJRT's own calls.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "caller.h"

static void expect_number(PJRT_NamedValue value, const char *name, int64_t expected) {
  EXPECT(value.type == PJRT_NamedValue_kInt64 && value.int64_value == expected);
  EXPECT(strlen(name) == value.name_size && memcmp(value.name, name, value.name_size) == 0);
}

static void expect_device(PJRT_Device *device, int id) {
  PJRT_Device_GetDescription_Args of = {.device = device};
  CALL(PJRT_Device_GetDescription, &of);
  PJRT_DeviceDescription_Attributes_Args args = {.device_description = of.device_description};
  CALL(PJRT_DeviceDescription_Attributes, &args);
  EXPECT(args.num_attributes == 4);
  const PJRT_NamedValue coords = args.attributes[0];
  EXPECT(strcmp(coords.name, "coords") == 0 && coords.value_size == 3);
  EXPECT(coords.int64_array_value[0] == id % 2);
  EXPECT(coords.int64_array_value[1] == id / 2 % 2);
  EXPECT(coords.int64_array_value[2] == 0);
  expect_number(args.attributes[1], "core_on_chip", 0);
  expect_number(args.attributes[2], "num_cores", 1);
  expect_number(args.attributes[3], "slice_index", id / 4);
  PJRT_DeviceDescription_Kind_Args kind = {.device_description = of.device_description};
  CALL(PJRT_DeviceDescription_Kind, &kind);
  EXPECT(kind.device_kind_size == 11 && memcmp(kind.device_kind, "TPU v6 lite", 11) == 0);
  PJRT_DeviceDescription_ToString_Args text = {.device_description = of.device_description};
  CALL(PJRT_DeviceDescription_ToString, &text);
  EXPECT(text.to_string_size == strlen(text.to_string));
  EXPECT(strncmp(text.to_string, "TpuDevice(id=", 13) == 0 && atoi(text.to_string + 13) == id);
  PJRT_DeviceDescription_DebugString_Args debug = {.device_description = of.device_description};
  CALL(PJRT_DeviceDescription_DebugString, &debug);
  EXPECT(strncmp(debug.debug_string, "TPU_", 4) == 0 && atoi(debug.debug_string + 4) == id);
}

TEST(devices_are_those_of_the_topology) {
  PJRT_Client *client = create_client();
  PJRT_Client_Devices_Args args = {.client = client};
  CALL(PJRT_Client_Devices, &args);
  EXPECT(args.num_devices == 8);
  for (int id = 0; id < 8; ++id) expect_device(args.devices[id], id);
  destroy_client(client);
}

TEST(a_second_client_has_the_same_devices) {
  PJRT_Client *first = create_client(), *second = create_client();
  PJRT_Client_Devices_Args args = {.client = second};
  CALL(PJRT_Client_Devices, &args);
  for (int id = 0; id < 8; ++id) expect_device(args.devices[id], id);
  destroy_client(second);
  destroy_client(first);
}

TEST(the_platform_is_a_tpu) {
  PJRT_Client *client = create_client();
  PJRT_Client_PlatformName_Args name = {.client = client};
  CALL(PJRT_Client_PlatformName, &name);
  EXPECT(name.platform_name_size == 3 && memcmp(name.platform_name, "tpu", 3) == 0);
  PJRT_Client_PlatformVersion_Args version = {.client = client};
  CALL(PJRT_Client_PlatformVersion, &version);
  EXPECT(strstr(version.platform_version, "Built on ") != NULL);
  EXPECT(strlen(version.platform_version) == version.platform_version_size);
  PJRT_Client_TopologyDescription_Args of = {.client = client};
  CALL(PJRT_Client_TopologyDescription, &of);
  PJRT_TopologyDescription_PlatformName_Args topology = {.topology = of.topology};
  CALL(PJRT_TopologyDescription_PlatformName, &topology);
  EXPECT(memcmp(topology.platform_name, "tpu", topology.platform_name_size) == 0);
  PJRT_TopologyDescription_PlatformVersion_Args its = {.topology = of.topology};
  CALL(PJRT_TopologyDescription_PlatformVersion, &its);
  EXPECT(memcmp(its.platform_version, version.platform_version, its.platform_version_size) == 0);
  destroy_client(client);
}

static size_t devices_where_visible(const char *chips) {
  setenv("VIRTUAL_TPU_TOPOLOGY", "1x4", 1);
  setenv("VIRTUAL_TPU_BOUNDS", "2,2,1", 1);
  setenv("TPU_PROCESS_BOUNDS", "1,1,1", 1);
  setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,1,1", 1);
  setenv("TPU_VISIBLE_CHIPS", chips, 1);
  unsetenv("MEGASCALE_NUM_SLICES");
  PJRT_Client *client = create_client();
  PJRT_Client_Devices_Args args = {.client = client};
  CALL(PJRT_Client_Devices, &args);
  destroy_client(client);
  return args.num_devices;
}

TEST(one_process_that_sees_all_chips_has_them) { EXPECT(devices_where_visible("0,1,2,3") == 4); }

TEST(one_process_that_sees_one_chip_has_one) { EXPECT(devices_where_visible("0") == 1); }

// A topology of its own, without a client, as ahead-of-time compilation asks for.
TEST(a_topology_without_a_client_is_no_crash) {
  PJRT_TopologyDescription_Create_Args args = {.topology_name = "v6e:2x4", .topology_name_size = 7};
  PJRT_Error *error = CALL_SIZED(PJRT_TopologyDescription_Create, &args,
                                 PJRT_TopologyDescription_Create_Args_STRUCT_SIZE);
  if (error != NULL) {
    EXPECT(strlen(text_of(error)) > 0);
    return;
  }
  PJRT_TopologyDescription_GetDeviceDescriptions_Args found = {.topology = args.topology};
  CALL(PJRT_TopologyDescription_GetDeviceDescriptions, &found);
  for (size_t i = 0; i < found.num_descriptions; ++i) {
    PJRT_DeviceDescription_Attributes_Args of = {.device_description = found.descriptions[i]};
    CALL(PJRT_DeviceDescription_Attributes, &of);
  }
  PJRT_TopologyDescription_Destroy_Args destroy = {.topology = args.topology};
  CALL(PJRT_TopologyDescription_Destroy, &destroy);
}

static const struct {
  const char *name, *value, *expected;
} WRONG[] = {
    {"VIRTUAL_TPU_TOPOLOGY", "4294967298x4", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x4294967300", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "99999999999999999999x4", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "-2x-4", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", " 2x4", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x 4", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "65x64", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_TOPOLOGY", "2x4x", "expected SLICESxDEVICES"},
    {"VIRTUAL_TPU_BOUNDS", "2,2", "expected X,Y,Z"},
    {"VIRTUAL_TPU_BOUNDS", "4294967298,2,1", "expected X,Y,Z"},
    {"VIRTUAL_TPU_BOUNDS", "+2,2,1", "expected X,Y,Z"},
    {"VIRTUAL_TPU_BOUNDS", "2,2,1,", "expected X,Y,Z"},
    {"MEGASCALE_NUM_SLICES", "4294967298", "has 2"},
    {"MEGASCALE_NUM_SLICES", "2nd", "has 2"},
};

TEST(numbers_that_can_not_be_are_refused) {
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; ++i) {
    const char *before = getenv(WRONG[i].name);
    char *kept = before == NULL ? NULL : strdup(before);
    setenv(WRONG[i].name, WRONG[i].value, 1);
    PJRT_Error *error = identity_read(NULL);
    if (error == NULL) fail("%s=%s was taken", WRONG[i].name, WRONG[i].value);
    const char *text = text_of(error);
    if (strstr(text, WRONG[i].expected) == NULL) fail("%s", text);
    if (kept == NULL) {
      unsetenv(WRONG[i].name);
    } else {
      setenv(WRONG[i].name, kept, 1);
    }
    free(kept);
  }
  ok(identity_read(NULL), "identity_read");
}

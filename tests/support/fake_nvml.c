/* A management library for GPUs that are not there: those of its functions that autotuned/gpu/inventory.py calls, over a
 * table in the environment. FAKE_GPUS holds one GPU or slice a line: "UUID|name", a slice with "  " before it below its GPU;
 * "!" stands for a GPU that this process may not use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char uuid[96], name[96]; int denied, slices; int parent; } Device;
static Device devices[64];
static int count, shut;

static void take(const char *line) {
    Device *device = &devices[count];
    memset(device, 0, sizeof *device);
    device->parent = -1;
    if (line[0] == ' ') {
        int above = count - 1;
        while (devices[above].parent >= 0) above--;
        device->parent = above;
        devices[above].slices++;
        line += 2;
    }
    device->denied = line[0] == '!';
    sscanf(line, "%95[^|]|%95[^\n]", device->uuid, device->name);
    count++;
}

int nvmlInit_v2(void) {
    const char *table = getenv("FAKE_GPUS");
    if (!table) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    char *copy = strdup(table);
    count = 0;
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) take(line);
    free(copy);
    return 0;
}

int nvmlShutdown(void) { return shut++, 0; }

static Device *nth(Device *parent, unsigned index) {
    for (int i = 0; i < count; i++) {
        int wanted = parent ? devices[i].parent == parent - devices : devices[i].parent < 0;
        if (wanted && index-- == 0) return &devices[i];
    }
    return NULL;
}

int nvmlDeviceGetCount_v2(unsigned *found) {
    for (*found = 0; nth(NULL, *found); ++*found) {}
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **found) {
    *found = nth(NULL, index);
    return !*found ? 2 : (*found)->denied ? 4 : 0; /* INVALID_ARGUMENT, NO_PERMISSION */
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) { return snprintf(text, size, "%s", device->uuid), 0; }
int nvmlDeviceGetName(Device *device, char *text, unsigned size) { return snprintf(text, size, "%s", device->name), 0; }

int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *pending) {
    if (strstr(device->name, "GeForce")) return 3; /* NOT_SUPPORTED */
    return *now = *pending = device->slices > 0, 0;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *found) { return (void)device, *found = 7, 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **found) {
    *found = nth(device, index);
    return *found ? 0 : 6; /* NOT_FOUND */
}

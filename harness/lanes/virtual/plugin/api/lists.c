#include "api/api.h"

static Known **link_of(Known **list, const void *object) {
  while (*list != NULL && (*list)->object != object) list = &(*list)->next;
  return list;
}

void *known_find(Known *list, const void *object) { return *link_of(&list, object); }

void *known_take(Known **list, const void *object) {
  Known **link = link_of(list, object), *entry = *link;
  if (entry != NULL) *link = entry->next;
  return entry;
}

void *known_add(Known **list, const void *object, void *entry) {
  *(Known *)entry = (Known){*list, object};
  return *list = entry;
}

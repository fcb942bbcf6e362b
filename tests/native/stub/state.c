#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUCKETS 4096

typedef struct entry {
    struct entry *next;
    const char *key;
    const char *value;
} entry_t;

static entry_t *buckets[BUCKETS];
static entry_t *entries;
static char *text;
static struct stat seen;
static bool loaded;

static unsigned bucket_of(const char *key)
{
    unsigned hash = 2166136261u; /* FNV-1a */
    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash % BUCKETS;
}

static bool is_new(const struct stat *now)
{
    return !loaded || now->st_ino != seen.st_ino || now->st_size != seen.st_size
        || now->st_mtim.tv_sec != seen.st_mtim.tv_sec || now->st_mtim.tv_nsec != seen.st_mtim.tv_nsec;
}

static char *read_all(int file, size_t size)
{
    char *content = malloc(size + 1);
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(file, content + done, size - done);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    content[done] = 0;
    return content;
}

static void index_lines(void)
{
    size_t lines = 1;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    entries = calloc(lines, sizeof *entries);
    memset(buckets, 0, sizeof buckets);

    entry_t *entry = entries;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        if (*line == '#' || !equals)
            continue;
        *equals = 0;
        entry->key = line;
        entry->value = equals + 1;
        unsigned bucket = bucket_of(line);
        entry->next = buckets[bucket]; /* in front: the later line wins */
        buckets[bucket] = entry++;
    }
}

bool state_refresh(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path)
        return false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return loaded;
    struct stat now;
    if (fstat(file, &now) == 0 && is_new(&now)) {
        free(text);
        free(entries);
        text = read_all(file, (size_t)now.st_size);
        index_lines();
        seen = now;
        loaded = true;
    }
    close(file);
    return loaded;
}

const char *state_get(const char *key)
{
    for (const entry_t *entry = buckets[bucket_of(key)]; entry; entry = entry->next)
        if (strcmp(entry->key, key) == 0)
            return entry->value;
    return NULL;
}

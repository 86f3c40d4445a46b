/*
 * A disk that fails on demand and remembers what was done to it: preloaded into the program under test, it stands between
 * the program and the C library in every call that changes files of one file system (FAULTS_DEV, its st_dev).
 *
 * Owns which call fails and the log of those that did not. Must not know what the files are for.
 *
 * FAULTS_CONTROL: `struct control`, mapped shared, so that the test can change its mind while the program runs.
 * FAULTS_LOG: every change that was made, in the order in which it was made: each call and its record happen under one
 * flock of the log. The file is opened for each record, because programs close descriptors that they do not know.
 *
 * Not seen: what is written through mappings (SQLite's shared index, which no power cut keeps), owners, times, attributes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Classes of calls, as tests/fs_faults/disk.rs names them. */
enum { WRITE = 1, SYNC = 2, NAME = 4, MAKE = 8, REMOVE = 16, CUT = 32, META = 64, OPEN = 128 };
/* Kinds of records, as tests/fs_faults/log.rs reads them. */
enum { R_CREATE = 1, R_LINK, R_RENAME, R_UNLINK, R_WRITE, R_CUT, R_SYNC, R_SYNCFS, R_CHMOD };

struct control {
	uint64_t count;   /* calls of these classes so far */
	uint64_t from;    /* the first that fails, counted from 1; 0: none */
	uint64_t until;   /* the first that does not fail any more */
	uint64_t failed;  /* calls that failed so far */
	uint32_t classes; /* which calls count */
	uint32_t error;   /* errno; 0: half of a write is made, and said so */
	uint32_t record;  /* whether changes are logged */
};

struct record {
	uint32_t kind, failed;
	uint64_t a, b, c;
	uint32_t first, second; /* bytes that follow */
};

static struct control *control;
static const char *log_path;
static dev_t device;

#define REAL(ret, name, ...)                  \
	static ret (*real_##name)(__VA_ARGS__); \
	if (!real_##name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
	const char *dev = getenv("FAULTS_DEV"), *path = getenv("FAULTS_CONTROL"), *log = getenv("FAULTS_LOG");
	if (!dev || !path || !log) return;
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return;
	void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	if (at == MAP_FAILED) return;
	device = strtoull(dev, NULL, 10);
	log_path = log;
	control = at;
}

/* The descriptor of the locked log, or -1 where it cannot be reached (a container's root). */
static int lock(void) {
	int saved = errno;
	int fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd >= 0)
		while (syscall(SYS_flock, fd, LOCK_EX) < 0 && errno == EINTR) {}
	errno = saved;
	return fd;
}

static void unlock(int fd) {
	int saved = errno;
	if (fd >= 0) syscall(SYS_close, fd);
	errno = saved;
}

static void tell(int log, struct record record, const void *first, const void *second) {
	if (log < 0 || !control->record) return;
	int saved = errno;
	struct iovec parts[3] = {
		{&record, sizeof record}, {(void *)first, record.first}, {(void *)second, record.second}};
	/* A torn record would make the log worthless: the test sees that it is not whole. */
	syscall(SYS_writev, log, parts, 3);
	errno = saved;
}

/* Counts a call; 1: fail with errno, 2: do half of it. */
static int fate(uint32_t class) {
	if (!(control->classes & class)) return 0;
	uint64_t number = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
	if (!control->from || number < control->from || number >= control->until) return 0;
	__atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
	if (!control->error) return class == WRITE ? 2 : 0;
	errno = control->error;
	return 1;
}

static int is_ours(int fd, struct stat *at) {
	if (!control) return 0;
	int saved = errno;
	int ours = fstat(fd, at) == 0 && at->st_dev == device;
	errno = saved;
	return ours;
}

/* The directory of a path, and the name in it. */
struct place {
	uint64_t parent;
	char name[NAME_MAX + 1];
};

static int place_of(int dir, const char *path, struct place *place) {
	if (!control || !path) return 0;
	int saved = errno, ours = 0;
	char parent[PATH_MAX];
	size_t length = strlen(path);
	while (length > 1 && path[length - 1] == '/') length--;
	size_t start = length;
	while (start > 0 && path[start - 1] != '/') start--;
	if (length - start <= NAME_MAX && start < PATH_MAX && length > start) {
		memcpy(place->name, path + start, length - start);
		place->name[length - start] = 0;
		memcpy(parent, path, start);
		parent[start] = 0;
		struct stat at;
		int answer = start ? fstatat(dir, parent, &at, 0)
		           : dir == AT_FDCWD ? stat(".", &at)
		                             : fstat(dir, &at);
		if (answer == 0 && at.st_dev == device) {
			place->parent = at.st_ino;
			ours = 1;
		}
	}
	errno = saved;
	return ours;
}

static struct record about(uint32_t kind, const struct place *place) {
	return (struct record){.kind = kind, .a = place->parent, .first = strlen(place->name)};
}

/* ---- opening ---- */

static int open_at(int dir, const char *path, int flags, mode_t mode) {
	REAL(int, openat, int, const char *, int, ...);
	struct place place;
	int changes = flags & (O_CREAT | O_TRUNC) || (flags & O_ACCMODE) != O_RDONLY;
	if ((flags & O_PATH) || !changes || (flags & O_TMPFILE) == O_TMPFILE || !place_of(dir, path, &place))
		return real_openat(dir, path, flags, mode);
	int log = lock(), saved = errno;
	struct stat before, after;
	int was_there = fstatat(dir, path, &before, 0) == 0;
	errno = saved;
	int fd = -1;
	if (!fate(!was_there && (flags & O_CREAT) ? MAKE : OPEN)) fd = real_openat(dir, path, flags, mode);
	if (fd >= 0 && is_ours(fd, &after)) {
		if (!was_there) {
			struct record record = about(R_CREATE, &place);
			record.b = after.st_ino;
			record.c = after.st_mode;
			tell(log, record, place.name, NULL);
		} else if ((flags & O_TRUNC) && S_ISREG(before.st_mode) && before.st_size > 0) {
			tell(log, (struct record){.kind = R_CUT, .a = after.st_ino}, NULL, NULL);
		}
	}
	unlock(log);
	return fd;
}

#define MODE_OF(flags)                                    \
	mode_t mode = 0;                                    \
	if ((flags) & (O_CREAT | O_TMPFILE)) {              \
		va_list list;                                   \
		va_start(list, flags);                          \
		mode = va_arg(list, mode_t);                    \
		va_end(list);                                   \
	}

int open(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE_OF(flags) return open_at(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE_OF(flags) return open_at(dir, path, flags | O_LARGEFILE, mode); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* ---- content ---- */

static ssize_t write_at(int fd, const void *bytes, size_t length, off_t offset, int positioned) {
	REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
	REAL(ssize_t, write, int, const void *, size_t);
	struct stat at;
	if (!is_ours(fd, &at) || !S_ISREG(at.st_mode))
		return positioned ? real_pwrite64(fd, bytes, length, offset) : real_write(fd, bytes, length);
	int log = lock();
	int how = fate(WRITE);
	ssize_t answer = -1;
	if (how != 1) {
		if (how == 2 && length > 1) length /= 2;
		if (!positioned) {
			/* Where it goes is known only under the lock. */
			int flags = fcntl(fd, F_GETFL);
			fstat(fd, &at);
			offset = flags & O_APPEND ? at.st_size : lseek(fd, 0, SEEK_CUR);
		}
		answer = positioned ? real_pwrite64(fd, bytes, length, offset) : real_write(fd, bytes, length);
	}
	if (answer > 0) {
		struct record record = {.kind = R_WRITE, .a = at.st_ino, .b = offset, .second = answer};
		tell(log, record, NULL, bytes);
	}
	unlock(log);
	return answer;
}

ssize_t write(int fd, const void *bytes, size_t length) { return write_at(fd, bytes, length, 0, 0); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return write_at(fd, bytes, length, offset, 1); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return write_at(fd, bytes, length, offset, 1); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
	REAL(ssize_t, writev, int, const struct iovec *, int);
	struct stat at;
	if (!is_ours(fd, &at) || !S_ISREG(at.st_mode)) return real_writev(fd, parts, count);
	/* The first part alone is a valid answer. */
	for (int part = 0; part < count; part++)
		if (parts[part].iov_len) return write_at(fd, parts[part].iov_base, parts[part].iov_len, 0, 0);
	return 0;
}

/* Callers fall back to reading and writing. */
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t length, unsigned flags) {
	REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
	struct stat at;
	if (!is_ours(to, &at)) return real_copy_file_range(from, in, to, out, length, flags);
	errno = ENOSYS;
	return -1;
}
static ssize_t send(int to, int from, off64_t *offset, size_t length) {
	struct stat at;
	if (!is_ours(to, &at)) return syscall(SYS_sendfile, to, from, offset, length);
	errno = EINVAL;
	return -1;
}
ssize_t sendfile(int to, int from, off_t *offset, size_t length) { return send(to, from, (off64_t *)offset, length); }
ssize_t sendfile64(int to, int from, off64_t *offset, size_t length) { return send(to, from, offset, length); }

static int cut(int fd, off64_t length) {
	REAL(int, ftruncate64, int, off64_t);
	struct stat at;
	if (!is_ours(fd, &at)) return real_ftruncate64(fd, length);
	int log = lock(), answer = fate(CUT) ? -1 : real_ftruncate64(fd, length);
	if (answer == 0) tell(log, (struct record){.kind = R_CUT, .a = at.st_ino, .b = length}, NULL, NULL);
	unlock(log);
	return answer;
}
int ftruncate(int fd, off_t length) { return cut(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length); }

/* ---- syncing: one that fails has lost what it was to write, as Linux' file systems do ---- */

static int sync_with(int (*real)(int), int fd, uint32_t kind) {
	struct stat at;
	if (!is_ours(fd, &at)) return real(fd);
	int log = lock(), answer = fate(SYNC) ? -1 : real(fd);
	struct record record = {.kind = kind, .failed = answer != 0, .a = at.st_ino, .c = at.st_mode};
	tell(log, record, NULL, NULL);
	unlock(log);
	return answer;
}
int fsync(int fd) { REAL(int, fsync, int); return sync_with(real_fsync, fd, R_SYNC); }
int fdatasync(int fd) { REAL(int, fdatasync, int); return sync_with(real_fdatasync, fd, R_SYNC); }
int syncfs(int fd) { REAL(int, syncfs, int); return sync_with(real_syncfs, fd, R_SYNCFS); }

/* ---- names ---- */

static int made(int log, int dir, const char *path, const struct place *place, const char *target, int answer) {
	struct stat at;
	int saved = errno;
	if (answer == 0 && fstatat(dir, path, &at, AT_SYMLINK_NOFOLLOW) == 0) {
		struct record record = about(R_CREATE, place);
		record.b = at.st_ino;
		record.c = at.st_mode;
		record.second = target ? strlen(target) : 0;
		tell(log, record, place->name, target);
	}
	errno = saved;
	unlock(log);
	return answer;
}

int mkdirat(int dir, const char *path, mode_t mode) {
	REAL(int, mkdirat, int, const char *, mode_t);
	struct place place;
	if (!place_of(dir, path, &place)) return real_mkdirat(dir, path, mode);
	int log = lock();
	return made(log, dir, path, &place, NULL, fate(MAKE) ? -1 : real_mkdirat(dir, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int mknodat(int dir, const char *path, mode_t mode, dev_t number) {
	REAL(int, mknodat, int, const char *, mode_t, dev_t);
	struct place place;
	if (!place_of(dir, path, &place)) return real_mknodat(dir, path, mode, number);
	int log = lock();
	return made(log, dir, path, &place, NULL, fate(MAKE) ? -1 : real_mknodat(dir, path, mode, number));
}
int mknod(const char *path, mode_t mode, dev_t number) { return mknodat(AT_FDCWD, path, mode, number); }

int symlinkat(const char *target, int dir, const char *path) {
	REAL(int, symlinkat, const char *, int, const char *);
	struct place place;
	if (!place_of(dir, path, &place)) return real_symlinkat(target, dir, path);
	int log = lock();
	return made(log, dir, path, &place, target, fate(MAKE) ? -1 : real_symlinkat(target, dir, path));
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int linkat(int from, const char *source, int dir, const char *path, int flags) {
	REAL(int, linkat, int, const char *, int, const char *, int);
	struct place place;
	struct stat at;
	if (!place_of(dir, path, &place)) return real_linkat(from, source, dir, path, flags);
	int log = lock(), answer = fate(NAME) ? -1 : real_linkat(from, source, dir, path, flags), saved = errno;
	if (answer == 0 && fstatat(dir, path, &at, AT_SYMLINK_NOFOLLOW) == 0) {
		struct record record = about(R_LINK, &place);
		record.b = at.st_ino;
		tell(log, record, place.name, NULL);
	}
	errno = saved;
	unlock(log);
	return answer;
}
int link(const char *source, const char *path) { return linkat(AT_FDCWD, source, AT_FDCWD, path, 0); }

int renameat2(int from, const char *source, int to, const char *target, unsigned flags) {
	struct place one, two;
	int ours = place_of(from, source, &one) + place_of(to, target, &two);
	if (ours != 2) return syscall(SYS_renameat2, from, source, to, target, flags);
	int log = lock(), answer = fate(NAME) ? -1 : (int)syscall(SYS_renameat2, from, source, to, target, flags);
	if (answer == 0) {
		struct record record = about(R_RENAME, &one);
		record.b = two.parent;
		record.c = flags;
		record.second = strlen(two.name);
		tell(log, record, one.name, two.name);
	}
	unlock(log);
	return answer;
}
int renameat(int from, const char *source, int to, const char *target) { return renameat2(from, source, to, target, 0); }
int rename(const char *source, const char *target) { return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0); }

int unlinkat(int dir, const char *path, int flags) {
	REAL(int, unlinkat, int, const char *, int);
	struct place place;
	if (!place_of(dir, path, &place)) return real_unlinkat(dir, path, flags);
	int log = lock(), answer = fate(REMOVE) ? -1 : real_unlinkat(dir, path, flags);
	if (answer == 0) tell(log, about(R_UNLINK, &place), place.name, NULL);
	unlock(log);
	return answer;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
	int answer = unlink(path);
	return answer < 0 && (errno == EISDIR || errno == EPERM) ? rmdir(path) : answer;
}

/* ---- modes ---- */

int fchmod(int fd, mode_t mode) {
	REAL(int, fchmod, int, mode_t);
	struct stat at;
	if (!is_ours(fd, &at)) return real_fchmod(fd, mode);
	int log = lock(), answer = fate(META) ? -1 : real_fchmod(fd, mode);
	if (answer == 0) tell(log, (struct record){.kind = R_CHMOD, .a = at.st_ino, .c = mode & 07777}, NULL, NULL);
	unlock(log);
	return answer;
}

int fchmodat(int dir, const char *path, mode_t mode, int flags) {
	REAL(int, fchmodat, int, const char *, mode_t, int);
	struct stat at;
	int saved = errno, ours = control && fstatat(dir, path, &at, 0) == 0 && at.st_dev == device;
	errno = saved;
	if (!ours) return real_fchmodat(dir, path, mode, flags);
	int log = lock(), answer = fate(META) ? -1 : real_fchmodat(dir, path, mode, flags);
	if (answer == 0) tell(log, (struct record){.kind = R_CHMOD, .a = at.st_ino, .c = mode & 07777}, NULL, NULL);
	unlock(log);
	return answer;
}
int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }

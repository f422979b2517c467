package exec

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// seals keep every rank from taking memory away under another that has it mapped. Another seal
// comes when none has: see Mappings.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newMemfd makes a sealed memfd of so many bytes. What it is for is said in errors.
func newMemfd(name, what string, size int) (fd int, err error) {
	if fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	// Others of this user get it by a socket, and no other user may open it through /proc.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fd, fmt.Errorf("fchmod of %s: %w", what, err)
	}
	// Not left to ftruncate, which would also raise a signal that ends the process.
	if files := limit(unix.RLIMIT_FSIZE); files < uint64(size) {
		return fd,
			fmt.Errorf("%s needs %d bytes of shared memory: raise the limit on the file size (ulimit "+
				"-f), which is %d",
				what, size, files)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fd, fmt.Errorf("ftruncate of %s of %d bytes: %w", what, size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fd, fmt.Errorf("sealing %s: %w", what, err)
	}
	return fd, nil
}

// checkSealed refuses a peer's memfd that could be made shorter.
func checkSealed(fd int) error {
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		return errors.New("it is not sealed against shrinking")
	}
	return nil
}

// mapMemfd maps all of a memfd. Memory is used only where it is touched.
func mapMemfd(fd, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, outOfMemory(err))
	}
	return mem, nil
}

// Mappings are those of a memfd, in all processes.
type Mappings struct{ fd int }

// MappingsOf are those of the memfd of a descriptor, which may be closed then.
func MappingsOf(fd int) (Mappings, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return Mappings{}, fmt.Errorf("dup: %w", err)
	}
	return Mappings{own}, nil
}

// Over tells whether there are none, and keeps others from being made then. Those of a process that
// has ended are gone.
func (m Mappings) Over() bool {
	// The kernel refuses this seal as long as the memory is mapped to be written.
	_, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	return err == nil
}

// Close forgets them.
func (m Mappings) Close() { unix.Close(m.fd) }

// outOfMemory adds the limit that a process without address space has come to.
func outOfMemory(err error) error {
	if most := limit(unix.RLIMIT_AS); err == unix.ENOMEM && most != unix.RLIM_INFINITY {
		return fmt.Errorf("%w: the address space is limited to %d bytes (ulimit -v)", err, most)
	}
	return err
}

// forThreads is what the stacks of the threads that a group's communication may start take of
// address space.
const forThreads = 64 << 20

// TryAddressSpace tells whether a limit leaves address space for threads. A Go program that can
// start none ends.
func TryAddressSpace() error {
	if limit(unix.RLIMIT_AS) == unix.RLIM_INFINITY {
		return nil
	}
	mem, err := unix.Mmap(-1, 0, forThreads, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("threads need %d bytes of address space: %w", forThreads, outOfMemory(err))
	}
	_ = unix.Munmap(mem) // fails only for what was not mapped
	return nil
}

package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

enum { SERIALIZED = 2 }; // MPI_THREAD_SERIALIZED

// mpi holds what is used of libmpi.so, by Open MPI's binary interface: handles are addresses.
static struct {
	int (*start)(int *, char ***, int, int *);
	int (*alltoall)(const void *, int, void *, void *, int, void *, void *);
	int (*end)(void);
	void *world, *bytes;
} mpi;

// open_mpi returns NULL, or what is wrong.
static const char *open_mpi(void) {
	void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
	if (library == NULL)
		return dlerror();
	mpi.start = dlsym(library, "MPI_Init_thread");
	mpi.alltoall = dlsym(library, "MPI_Alltoall");
	mpi.end = dlsym(library, "MPI_Finalize");
	mpi.world = dlsym(library, "ompi_mpi_comm_world");
	mpi.bytes = dlsym(library, "ompi_mpi_byte");
	if (!mpi.start || !mpi.alltoall || !mpi.end || !mpi.world || !mpi.bytes)
		return "libmpi.so.40 is not Open MPI's";
	int given;
	if (mpi.start(NULL, NULL, SERIALIZED, &given) != 0)
		return "MPI_Init_thread fails";
	return given >= SERIALIZED ? NULL : "no MPI_THREAD_SERIALIZED";
}

static int mpi_alltoall(const void *in, void *out, int bytes) {
	return mpi.alltoall(in, bytes, mpi.bytes, out, bytes, mpi.bytes, mpi.world);
}

static int close_mpi(void) { return mpi.end(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccl/goccl/core"
)

// openMPI is the Open MPI whose mpirun has started this program.
func openMPI() (entrant, error) {
	if wrong := C.open_mpi(); wrong != nil {
		return entrant{}, errors.New(C.GoString(wrong))
	}
	alltoall := func(ops ...core.Operation) error {
		op := ops[0]
		if code := C.mpi_alltoall(op.In[0], op.Out[0], C.int(4*op.InCounts[0])); code != 0 {
			return fmt.Errorf("MPI_Alltoall returns %d", code)
		}
		return nil
	}
	end := func() error {
		if code := C.close_mpi(); code != 0 {
			return fmt.Errorf("MPI_Finalize returns %d", code)
		}
		return nil
	}
	return entrant{name: strings.TrimSpace("openmpi " + os.Getenv("OMPI_MCA_pml")), call: alltoall,
		close: end, memory: ordinary}, nil
}

package trim

import (
	"debug/elf"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Keys of the auxiliary vector; getauxval(3).
const (
	atPHDR  = 3
	atPHNum = 5
)

// dropImage unmaps the pages of the executable's read-only segments. Their addresses come from the auxiliary vector and
// the program headers in memory, because a sentry has no /proc.
func dropImage() {
	vector, err := unix.Auxv()
	if err != nil {
		return
	}
	var at, count uintptr
	for _, v := range vector {
		switch v[0] {
		case atPHDR:
			at = v[1]
		case atPHNum:
			count = v[1]
		}
	}
	if at == 0 || count == 0 || count > 64 {
		return
	}
	headers := unsafe.Slice((*elf.Prog64)(pointer(at)), int(count))
	bias := uintptr(0)
	for _, h := range headers {
		if elf.ProgType(h.Type) == elf.PT_PHDR {
			bias = at - uintptr(h.Vaddr)
		}
	}
	page := uintptr(os.Getpagesize())
	for _, h := range headers {
		if elf.ProgType(h.Type) != elf.PT_LOAD || elf.ProgFlag(h.Flags)&elf.PF_W != 0 {
			continue
		}
		begin := (bias + uintptr(h.Vaddr) + page - 1) &^ (page - 1)
		end := (bias + uintptr(h.Vaddr) + uintptr(h.Filesz)) &^ (page - 1)
		if end <= begin {
			continue
		}
		unix.Madvise(unsafe.Slice((*byte)(pointer(begin)), int(end-begin)), unix.MADV_DONTNEED)
	}
}

// pointer makes a pointer of an address that the kernel gave; it is outside the heap.
func pointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

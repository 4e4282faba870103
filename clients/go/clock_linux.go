package leaselock

import (
	"syscall"
	"unsafe"
)

const clockBoottime = 7

func now() moment {
	var spec syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&spec)), 0); errno != 0 {
		panic("clock_gettime: " + errno.Error())
	}
	return moment(spec.Nano())
}

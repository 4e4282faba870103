//go:build !linux

package leaselock

import "time"

var start = time.Now()

func now() moment {
	return moment(time.Since(start))
}

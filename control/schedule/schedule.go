// Package schedule decides where, and whether, a sandbox may run. It is pure and deterministic: everything it knows is in
// its arguments.
//
// Admission is by memory: the sum of what the live sandboxes may use, those being created included, and the request must fit
// in what the node gives. Other resources are shared and may be given out several times.
package schedule

import (
	"fmt"
	"strings"

	"github.com/caisson-sandbox/caisson"
)

// View is what is known of the node.
type View struct {
	Drivers       []Driver
	Default       string // the driver for a request that names none
	MemoryMiB     int    // what may be given in all; 0: not known, and not limited
	MemoryUsedMiB int    // Σ of the live sandboxes
}

// Driver is one that the node has.
type Driver struct {
	Name, Version string
	Isolation     caisson.Isolation
	Err           string // why it cannot be used; empty if it can
}

// Request is what is to be placed.
type Request struct {
	Driver    string // "": the node's default
	MemoryMiB int
}

// Place chooses a driver and admits the request. Unsupported: the driver cannot be used, with the node's reason.
// Exhausted: the memory does not suffice, with the sums.
func Place(v View, r Request) (Driver, error) {
	d, err := driver(v, r.Driver)
	if err != nil {
		return Driver{}, err
	}
	if err := admit(v, r); err != nil {
		return Driver{}, err
	}
	return d, nil
}

func driver(v View, name string) (Driver, error) {
	const op = "choose driver"
	if name == "" {
		name = v.Default
	}
	var usable, why []string
	for _, d := range v.Drivers {
		switch {
		case d.Name == name && d.Err == "":
			return d, nil
		case d.Name == name:
			return Driver{}, caisson.E(caisson.Unsupported, op, name, "this host cannot use it: "+d.Err, nil).WithHint("`caisson doctor` tells more; leave the driver out to get one that works")
		case d.Err == "":
			usable = append(usable, d.Name)
		default:
			why = append(why, d.Name+": "+d.Err)
		}
	}
	switch {
	case name != "" && len(usable) > 0:
		return Driver{}, caisson.E(caisson.Unsupported, op, name, "there is no such driver", nil).WithHint("this host can use " + strings.Join(usable, ", "))
	case name == "" && len(usable) > 0: // a node without a default
		return driver(v, usable[0])
	}
	return Driver{}, caisson.E(caisson.Unsupported, op, name, strings.TrimSuffix("no driver can be used on this host: "+strings.Join(why, "; "), ": "), nil).WithHint("`caisson doctor` says what to do")
}

func admit(v View, r Request) error {
	const op = "admit sandbox"
	switch {
	case v.MemoryMiB == 0:
		return nil
	case r.MemoryMiB > v.MemoryMiB:
		return caisson.E(caisson.Exhausted, op, "", fmt.Sprintf("%d MiB of memory are asked for; this host gives %d MiB to all sandboxes together", r.MemoryMiB, v.MemoryMiB), nil).WithHint("ask for less memory")
	case v.MemoryUsedMiB > v.MemoryMiB-r.MemoryMiB:
		return caisson.E(caisson.Exhausted, op, "", fmt.Sprintf("%d MiB of memory are asked for and %d MiB are free: live sandboxes have %d of %d MiB", r.MemoryMiB, max(v.MemoryMiB-v.MemoryUsedMiB, 0), v.MemoryUsedMiB, v.MemoryMiB), nil).
			WithHint("stop or delete a sandbox, or ask for less memory")
	}
	return nil
}

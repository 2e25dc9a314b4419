// Package lifecycle says what may follow what in the life of a sandbox. It is pure: no clock, no context, no I/O.
//
//	       Create              Started
//	(none) ──────▶ creating ─────────────▶ running ◀───────────────────────┐
//	                │    │                  │  │  │                         │
//	   StartFailed  │    │ Interrupted      │  │  │ Exited                  │ Started
//	      ┌─────────┘    └──▶ failed ◀──────┘  │  └──────────┐              │
//	      │                     │ │   Ended    │ Stop        │              │
//	      │                     │ │            ▼             ▼    Start     │
//	      │                     │ └─Stop─▶ stopping ─────▶ stopped ──────▶ waking
//	      │                     │              Stopped        ▲              ▲ │
//	      ▼                     └────────────── Start ────────│──────────────┘ │
//	   deleting ──▶ (none)                                    └────────────────┘
//	           Deleted                                    StartFailed, Interrupted
//
// Delete and Expire lead from every state to deleting, and the only way out of deleting is Deleted. StopFailed leads from
// stopping back to running. Ended leads from every state that has a machine to failed. What already is as asked (Start of a
// running one, Stop of a stopped one) stays, with nothing to do. The states of pause and suspend have no verbs yet.
package lifecycle

import "github.com/caisson-sandbox/caisson"

// None is the state of a sandbox that has no record.
const None caisson.State = ""

// Event is what happens to a sandbox.
type Event string

// The events.
const (
	Create      Event = "create"       // asked for
	Started     Event = "started"      // the agent answers
	StartFailed Event = "start_failed" // the node could not start it and has nothing of this life
	Stop        Event = "stop"         // asked for
	Stopped     Event = "stopped"      // the node has ended the life and kept the disk
	StopFailed  Event = "stop_failed"  // the node could not end it: it runs on
	Ended       Event = "ended"        // the machine ended by itself: oom, killed, crashed, shim lost
	Exited      Event = "exited"       // the machine was powered off from inside
	Start       Event = "start"        // asked for
	Interrupted Event = "interrupted"  // the control plane restarted and the node does not have it up
	Delete      Event = "delete"       // asked for
	Expire      Event = "expire"       // its lifetime is over
	Deleted     Event = "deleted"      // the node has nothing of it
)

// Action is what has to be done once the new state is recorded.
type Action string

// The actions, all on the node but the last.
const (
	StartMachine  Action = "start-machine"
	StopMachine   Action = "stop-machine" // ends what is left of the life, keeps the disk
	DeleteMachine Action = "delete-machine"
	RemoveRecord  Action = "remove-record"
)

// EndOf gives the event for the reason of which a machine ended.
func EndOf(reason string) Event {
	if reason == "exited" {
		return Exited
	}
	return Ended
}

// step is a cell of the table.
type step struct {
	to      caisson.State
	actions []Action
}

var stay = step{to: "="}

// table holds what differs from state to state; Delete, Expire and deleting are in Next.
var table = map[caisson.State]map[Event]step{
	None: {Create: {caisson.Creating, []Action{StartMachine}}},
	caisson.Creating: {
		Started:     {to: caisson.Running},
		StartFailed: {caisson.Deleting, []Action{DeleteMachine}}, // nothing is left of a failed create
		Interrupted: {caisson.Failed, []Action{DeleteMachine}},   // nobody heard of the failure: the record tells
	},
	caisson.Running: {
		Start:  stay,
		Stop:   {caisson.Stopping, []Action{StopMachine}},
		Ended:  {to: caisson.Failed},
		Exited: {to: caisson.Stopped},
	},
	caisson.Stopping: {
		Stop:        {caisson.Stopping, []Action{StopMachine}},
		Stopped:     {to: caisson.Stopped},
		StopFailed:  {to: caisson.Running},
		Ended:       {to: caisson.Failed},
		Exited:      {to: caisson.Stopped},
		Interrupted: {caisson.Stopping, []Action{StopMachine}},
	},
	caisson.Stopped: {
		Start:  {caisson.Waking, []Action{StartMachine}},
		Stop:   stay,
		Ended:  stay,
		Exited: stay,
	},
	caisson.Waking: {
		Started:     {to: caisson.Running},
		StartFailed: {to: caisson.Stopped},
		Interrupted: {caisson.Stopped, []Action{StopMachine}},
	},
	caisson.Failed: {
		Start:  {caisson.Waking, []Action{StartMachine}},
		Stop:   {caisson.Stopping, []Action{StopMachine}},
		Ended:  stay,
		Exited: stay,
	},
	caisson.Pausing:    {Ended: {to: caisson.Failed}, Exited: {to: caisson.Stopped}},
	caisson.Paused:     {Ended: {to: caisson.Failed}, Exited: {to: caisson.Stopped}},
	caisson.Suspending: {Ended: {to: caisson.Failed}, Exited: {to: caisson.Stopped}},
	caisson.Suspended:  {Ended: stay, Exited: stay},
}

// Next gives the state that follows and what has to be done in it. An event that may not happen in the state is a Conflict
// that names the state and leaves it. Next never panics, whatever it is given.
func Next(state caisson.State, e Event) (caisson.State, []Action, error) {
	if state == caisson.Deleting {
		switch e {
		case Deleted:
			return None, []Action{RemoveRecord}, nil
		case Delete, Expire, Interrupted, StartFailed:
			return state, []Action{DeleteMachine}, nil
		case Ended, Exited:
			return state, nil, nil
		}
		return state, nil, refuse(state, e)
	}
	steps, known := table[state]
	if known && state != None && (e == Delete || e == Expire) {
		return caisson.Deleting, []Action{DeleteMachine}, nil
	}
	s, ok := steps[e]
	switch {
	case !ok:
		return state, nil, refuse(state, e)
	case s.to == stay.to:
		return state, nil, nil
	}
	return s.to, append([]Action(nil), s.actions...), nil
}

var hints = map[caisson.State]string{
	caisson.Creating:  "wait until it runs, or delete it",
	caisson.Waking:    "wait until it runs",
	caisson.Running:   "stop it first",
	caisson.Stopping:  "wait until it is stopped",
	caisson.Stopped:   "start it first",
	caisson.Failed:    "start it again, or delete it",
	caisson.Deleting:  "it will be gone in a moment",
	caisson.Suspended: "wake it first",
	caisson.Paused:    "resume it first",
}

func refuse(state caisson.State, e Event) error {
	if state == None {
		return caisson.E(caisson.NotFound, string(e), "", "there is no such sandbox", nil)
	}
	return caisson.E(caisson.Conflict, string(e), "", "it is "+string(state), nil).WithHint(hints[state])
}

// Live reports whether a sandbox in the state has, or may have, a machine that takes memory.
func Live(state caisson.State) bool {
	switch state {
	case None, caisson.Stopped, caisson.Failed, caisson.Suspended:
		return false
	}
	return true
}

package trim

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestIdle: the function runs once after a busy time, however long that was, and again after the next.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		i := NewIdle(time.Second, func() { calls.Add(1) })
		time.Sleep(time.Hour)
		if n := calls.Load(); n != 0 {
			t.Fatalf("%d calls of what was never busy", n)
		}
		for turn := range int32(3) {
			for range 100 {
				i.Touch()
				time.Sleep(300 * time.Millisecond)
			}
			if n := calls.Load(); n != turn {
				t.Fatalf("%d calls while it was busy for the %d. time", n, turn+1)
			}
			time.Sleep(2 * time.Second)
			if n := calls.Load(); n != turn+1 {
				t.Fatalf("%d calls when it was quiet for the %d. time", n, turn+1)
			}
			time.Sleep(time.Hour)
		}
	})
}

// TestTouchWhileDone: what happens during the call is followed by one more.
func TestTouchWhileDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var i *Idle
		i = NewIdle(time.Second, func() {
			if calls++; calls == 1 {
				i.Touch()
			}
		})
		i.Touch()
		time.Sleep(time.Minute)
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}

// fileResident is how much of files this process has mapped, in KiB.
func fileResident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no RssFile")
	return 0
}

func TestProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells what is resident")
	}
	before := fileResident(t)
	Process()
	if after := fileResident(t); after >= before {
		t.Errorf("%d KiB of files are resident after, %d before", after, before)
	}
}

package rootfs

import (
	"errors"
	"path"
	"slices"
	"strings"
)

// The types of file in a mode, as stat(2) has them.
const (
	modeType    = 0xf000
	modeFIFO    = 0x1000
	modeChar    = 0x2000
	modeDir     = 0x4000
	modeBlock   = 0x6000
	modeRegular = 0x8000
	modeLink    = 0xa000
	modeSocket  = 0xc000
)

// node is an inode to be.
type node struct {
	mode     uint16
	uid, gid uint32
	mtime    uint64
	nsec     uint32
	rdev     uint32

	size  int64
	block uint32 // where the data starts

	nlink uint32
	index int // place among the inodes, from 1; 0: not numbered yet

	// Of directories only.
	parent   *node
	depth    int
	children map[string]*node
	sorted   []dirent // children, "." and ".." in order, once numbered
}

type dirent struct {
	name string
	node *node
}

func (n *node) is(t uint16) bool { return n.mode&modeType == t }

// tree is the directory tree while it grows.
type tree struct {
	img   *image
	root  *node
	nodes int
	names int // bytes
	max   int
}

func newTree(img *image, maxNodes int) *tree {
	root := &node{mode: modeDir | 0o755, children: map[string]*node{}}
	root.parent = root
	return &tree{img: img, root: root, nodes: 1, max: maxNodes}
}

// split cleans a path and cuts it in its parts; the root has none.
func split(p string) ([]string, error) {
	if len(p) > maxPath {
		return nil, errors.New("its path is too long")
	}
	if strings.IndexByte(p, 0) >= 0 {
		return nil, errors.New("its path has a zero byte")
	}
	p = path.Clean("/" + p)[1:]
	if p == "" {
		return nil, nil
	}
	parts := strings.Split(p, "/")
	for _, s := range parts {
		if len(s) > maxName {
			return nil, errors.New("its name is too long")
		}
	}
	return parts, nil
}

// add puts n at path p.
func (t *tree) add(p string, n *node) error {
	parts, err := split(p)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		if !n.is(modeDir) {
			return errors.New("the root must be a directory")
		}
		n.adopt(t.root)
		return nil
	}
	dir, err := t.walk(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	name := parts[len(parts)-1]
	if old := dir.children[name]; old != nil && old.is(modeDir) && n.is(modeDir) {
		n.adopt(old)
		return nil
	}
	return t.put(dir, name, n, true)
}

// adopt gives the directory old the metadata of n.
func (n *node) adopt(old *node) {
	old.mode, old.uid, old.gid, old.mtime, old.nsec = n.mode, n.uid, n.gid, n.mtime, n.nsec
}

// link makes p another name of the file at target.
func (t *tree) link(p, target string) error {
	to, err := split(target)
	if err != nil {
		return err
	}
	parts, err := split(p)
	if err != nil {
		return err
	}
	if len(to) == 0 || len(parts) == 0 {
		return errors.New("a hard link to or at the root")
	}
	var n *node
	if dir, err := t.walk(to[:len(to)-1], false); err == nil {
		n = dir.children[to[len(to)-1]]
	}
	if n == nil {
		return errors.New("the target of the hard link is not in the tar before it")
	}
	if n.is(modeDir) {
		return errors.New("a hard link to a directory")
	}
	dir, err := t.walk(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	return t.put(dir, parts[len(parts)-1], n, false)
}

// put sets the name in dir. fresh says that n is new.
func (t *tree) put(dir *node, name string, n *node, fresh bool) error {
	if fresh {
		if t.nodes++; t.nodes > t.max {
			return exhausted("the image has too many files")
		}
	}
	if _, ok := dir.children[name]; !ok {
		if t.names += len(name); t.names > maxNames {
			return exhausted("the names in the image are too long altogether")
		}
	}
	if n.is(modeDir) {
		if n.parent, n.depth = dir, dir.depth+1; n.depth > maxDepth {
			return errors.New("the directories are too deep")
		}
		n.children = map[string]*node{}
	}
	dir.children[strings.Clone(name)] = n // the name is part of a longer path
	return nil
}

// walk goes to the directory at parts, following symbolic links inside the tree. With mkdir, what is missing or not a
// directory becomes one.
func (t *tree) walk(parts []string, mkdir bool) (*node, error) {
	dir, links := t.root, 0
	for len(parts) > 0 {
		name := parts[0]
		parts = parts[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			dir = dir.parent
			continue
		}
		if len(name) > maxName {
			return nil, errors.New("a link on its path leads to a name that is too long")
		}
		n := dir.children[name]
		switch {
		case n != nil && n.is(modeDir):
			dir = n
		case n != nil && n.is(modeLink):
			if links++; links > maxLinks {
				return nil, errors.New("too many symbolic links on its path")
			}
			target, err := t.img.readTarget(n)
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(target, "/") {
				dir = t.root
			}
			parts = append(strings.Split(target, "/"), parts...)
		case !mkdir:
			return nil, errors.New("no such directory")
		default:
			made := &node{mode: modeDir | 0o755}
			if err := t.put(dir, name, made, true); err != nil {
				return nil, err
			}
			dir = made
		}
	}
	return dir, nil
}

// number gives every node its place, the root's first, a directory's children together, and counts links. It turns the
// maps of children into sorted lists.
func (t *tree) number() []*node {
	t.root.index = 1
	order := []*node{t.root}
	for i := 0; i < len(order); i++ {
		d := order[i]
		if !d.is(modeDir) {
			continue
		}
		d.nlink = 2
		d.sorted = append(make([]dirent, 0, len(d.children)+2), dirent{".", d}, dirent{"..", d.parent})
		for name, n := range d.children {
			d.sorted = append(d.sorted, dirent{name, n})
		}
		d.children = nil
		slices.SortFunc(d.sorted, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
		for _, e := range d.sorted {
			switch n := e.node; {
			case e.name == "." || e.name == "..":
				continue
			case n.is(modeDir):
				d.nlink++
			default:
				n.nlink++
			}
			if e.node.index == 0 {
				order = append(order, e.node)
				e.node.index = len(order)
			}
		}
	}
	return order
}

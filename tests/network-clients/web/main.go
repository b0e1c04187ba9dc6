// The web servers that sandboxes of the tests reach, and a client for them that is a static binary.
//
//	web serve ADDRESS CERTIFICATE KEY TREE   ports 80 and 443 of an address; TREE has a directory for each host name
//	web get URL...                           what a server answers, and over which protocol
//	web hold COUNT URL                       so many connections at once, all open before the first request
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

func main() {
	log.SetFlags(0)
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	case "get":
		for _, url := range os.Args[2:] {
			get(url)
		}
	case "hold":
		count, err := strconv.Atoi(os.Args[2])
		check(err)
		hold(count, os.Args[3])
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func serve(address, certificate, key, tree string) {
	handler := &site{tree: tree, read: make(map[string]chan struct{})}
	plain, err := net.Listen("tcp", address+":80")
	check(err)
	encrypted, err := net.Listen("tcp", address+":443")
	check(err)
	fmt.Println("ready")
	go func() { check(http.Serve(plain, handler)) }()
	check(http.ServeTLS(encrypted, handler, certificate, key))
}

type site struct {
	tree string
	lock sync.Mutex
	// Streams of events, each waiting until its reader has said that it has the last one.
	read map[string]chan struct{}
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := strings.Split(r.Host, ":")[0]
	switch {
	case strings.Contains(r.URL.Path, ".git/"):
		git := cgi.Handler{
			Path: "/usr/lib/git-core/git-http-backend",
			Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Join(s.tree, host), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=test"},
		}
		git.ServeHTTP(w, r)
	case r.URL.Path == "/bytes":
		s.bytes(w, r)
	case r.URL.Path == "/echo":
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.Proto, body)
	case r.URL.Path == "/events":
		s.events(w, r)
	case r.URL.Path == "/read":
		s.reader(r.URL.Query().Get("stream")) <- struct{}{}
	default:
		s.file(w, r, filepath.Join(s.tree, host, filepath.Clean("/"+r.URL.Path)))
	}
}

// So many bytes, of which each can be told from its neighbours.
func (s *site) bytes(w http.ResponseWriter, r *http.Request) {
	count, err := strconv.ParseInt(r.URL.Query().Get("count"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(count, 10))
	block := make([]byte, 1<<20-1)
	for at := range block {
		block[at] = byte(at * 7)
	}
	for count > 0 {
		part := block
		if int64(len(part)) > count {
			part = part[:count]
		}
		written, err := w.Write(part)
		if err != nil {
			return
		}
		count -= int64(written)
	}
}

func (s *site) reader(stream string) chan struct{} {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.read[stream] == nil {
		s.read[stream] = make(chan struct{}, 1)
	}
	return s.read[stream]
}

// Each event is sent after the one before has been read: a proxy that collects answers would wait forever.
func (s *site) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	read := s.reader(r.URL.Query().Get("stream"))
	for number := 0; number < 5; number++ {
		fmt.Fprintf(w, "data: %d\n\n", number)
		w.(http.Flusher).Flush()
		select {
		case <-read:
		case <-r.Context().Done():
			return
		}
	}
}

// A directory is what its index says; no redirect to a path with a slash.
func (s *site) file(w http.ResponseWriter, r *http.Request, path string) {
	for _, name := range []string{path, path + "/index.html", path + "/index.json"} {
		found, err := os.Stat(name)
		if err != nil || found.IsDir() {
			continue
		}
		opened, err := os.Open(name)
		if err != nil {
			break
		}
		defer opened.Close()
		http.ServeContent(w, r, filepath.Base(name), found.ModTime(), opened)
		return
	}
	http.NotFound(w, r)
}

func get(url string) {
	answer, err := http.Get(url)
	check(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	check(err)
	fmt.Println(answer.Status, answer.Proto, len(body))
}

func hold(count int, url string) {
	address := strings.TrimPrefix(url, "http://")
	held := make([]net.Conn, count)
	for at := range held {
		connection, err := net.Dial("tcp", address+":80")
		check(err)
		// Half of a request, so that the other end waits for the rest.
		_, err = fmt.Fprintf(connection, "GET /echo HTTP/1.1\r\nHost: %s\r\n", address)
		check(err)
		held[at] = connection
	}
	answered := 0
	for _, connection := range held {
		_, err := io.WriteString(connection, "Connection: close\r\n\r\n")
		check(err)
	}
	for _, connection := range held {
		answer, err := io.ReadAll(connection)
		check(err)
		if strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			answered++
		}
		connection.Close()
	}
	fmt.Println(answered, "answered")
}

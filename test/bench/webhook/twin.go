// The same service in Go's net/http: reads a review, looks at its pod's containers, answers a patch of the usual length.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

type review struct {
	Request struct {
		UID    string `json:"uid"`
		Object struct {
			Metadata map[string]any `json:"metadata"`
			Spec     map[string]any `json:"spec"`
		} `json:"object"`
	} `json:"request"`
}

func main() {
	patch := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(`{"op":"add","path":"/x","value":"y"}`, 40)))
	http.HandleFunc("/mutate", func(w http.ResponseWriter, r *http.Request) {
		var body review
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		containers, _ := body.Request.Object.Spec["containers"].([]any)
		answer := map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": map[string]any{
			"uid": body.Request.UID, "allowed": len(containers) > 0, "patchType": "JSONPatch", "patch": patch}}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(answer)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.ServeTLS(listener, nil, os.Args[1], os.Args[2]))
}

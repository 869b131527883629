// Perfetto's trace processor behind a pipe.
//
//   node engine.js FOLDER      FOLDER holds engine_bundle.js and the trace_processor*.wasm files
//
// On standard input and output go frames: four bytes of length (little endian), then a TraceProcessorRpcStream.
// Each frame in is answered by one frame out, which is empty when the engine has crashed; the engine's own messages
// go to standard error. The first frame out, an empty one, says that the engine is up.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');

const folder = process.argv[2];
let answer = [];

// What the bundle, written for a web worker, expects around itself.
const worker = {location: {href: 'file:///engine_bundle.js'}};
const port = {
  postMessage: (bytes) => answer.push(Buffer.from(bytes)),
  onmessage: null,
};

class FileRequest {
  // The bundle loads its WebAssembly by synchronous requests where it finds no fetch().
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }

  send() {
    this.response = fs.readFileSync(this.file);
    this.status = 200;
  }
}

const say = (...words) => process.stderr.write(words.join(' ') + '\n');
const surroundings = vm.createContext({
  self: worker,
  WorkerGlobalScope: class {},
  XMLHttpRequest: FileRequest,
  console: {log: say, warn: say, error: say, info: say, debug: say},
  Uint8Array,  // the bundle checks requests with instanceof, so it must know this realm's class
  TextDecoder, TextEncoder, URL, performance, crypto, setTimeout, clearTimeout,
});

// The bundle keeps its bridge to itself, and only the bridge knows when the engine is up.
const source = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
const hooked = source.replace(/new (\w+)\.WasmBridge\b/, 'self.bridge=new $1.WasmBridge');
if (hooked === source) throw new Error('this engine_bundle.js creates no WasmBridge: another version of Perfetto?');
vm.runInContext(hooked, surroundings, {filename: 'engine_bundle.js'});
worker.onmessage({data: port});

function write(bytes) {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  process.stdout.write(Buffer.concat([length, bytes]));
}

function serve() {
  let pieces = [];
  let size = 0;
  write(Buffer.alloc(0));
  process.stdin.on('data', (piece) => {
    pieces.push(piece);
    size += piece.length;
    if (size < 4) return;
    if (pieces[0].length < 4) pieces = [Buffer.concat(pieces)];
    const end = 4 + pieces[0].readUInt32LE(0);
    if (size < end) return;
    // The other side waits for each answer, so one whole frame is all there can be.
    const request = Buffer.concat(pieces).subarray(4, end);
    pieces = [];
    size = 0;
    answer = [];
    port.onmessage({data: new Uint8Array(request)});
    write(Buffer.concat(answer));
  });
}

(function waitForEngine() {
  if (worker.bridge.reqBufferAddr) serve();
  else setTimeout(waitForEngine, 2);
})();

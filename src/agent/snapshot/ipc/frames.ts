// Framing of the socket between the agent's two halves: length, kind, request id, payload. Writes frames, and parses a byte stream into
// frames of a bounded length; protocol.ts defines their content.

export type Frame = {
  readonly kind: number;
  /** The request's id, also in its answer; 0 for a message without a request. */
  readonly id: number;
  /** In its own buffer, which may be transferred to a worker. */
  readonly payload: Uint8Array<ArrayBuffer>;
};

/** Payload length (32 bits), kind (8 bits), id (32 bits); big-endian. */
const HEADER = 9;

export function frameOf(kind: number, id: number, payload: string | Uint8Array = ''): Buffer {
  const length = typeof payload === 'string' ? Buffer.byteLength(payload) : payload.byteLength;
  const frame = Buffer.allocUnsafe(HEADER + length);
  frame.writeUInt32BE(length, 0);
  frame.writeUInt8(kind, 4);
  frame.writeUInt32BE(id, 5);
  if (typeof payload === 'string') frame.write(payload, HEADER);
  else frame.set(payload, HEADER);
  return frame;
}

export type FrameParser = {
  /** Returns the frames that this piece completes. After `wrong` the stream cannot be parsed further. */
  push(piece: Buffer): { readonly frames: readonly Frame[]; readonly wrong?: string };
};

/** `mostBytes`: limit of a frame's payload, whose buffer is allocated once, when its header has arrived. */
export function createFrameParser(mostBytes: number): FrameParser {
  const header = Buffer.alloc(HEADER);
  let headerBytes = 0;
  let payload: Uint8Array<ArrayBuffer> | undefined;
  let payloadBytes = 0;
  let wrong: string | undefined;
  return {
    push(piece) {
      const frames: Frame[] = [];
      let at = 0;
      while (wrong === undefined) {
        if (!payload) {
          const taken = piece.copy(header, headerBytes, at, at + HEADER - headerBytes);
          at += taken;
          headerBytes += taken;
          if (headerBytes < HEADER) break;
          const length = header.readUInt32BE(0);
          if (length > mostBytes) {
            wrong = `a frame of ${length} bytes; the limit is ${mostBytes}`;
            break;
          }
          payload = new Uint8Array(new ArrayBuffer(length));
          payloadBytes = 0;
        }
        const part = piece.subarray(at, at + payload.byteLength - payloadBytes);
        payload.set(part, payloadBytes);
        at += part.byteLength;
        payloadBytes += part.byteLength;
        if (payloadBytes < payload.byteLength) break;
        frames.push({ kind: header.readUInt8(4), id: header.readUInt32BE(5), payload });
        payload = undefined;
        headerBytes = 0;
      }
      return wrong === undefined ? { frames } : { frames, wrong };
    },
  };
}

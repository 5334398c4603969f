// What the soak scrapes, in threads of their own, which its waits do not stop: the agent's page, and in turns with it a
// bare server that hands out the same bytes. Looks at each page for what must not be on it.
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/** Milliseconds; `own`: less what both ends, which take turns, waited for a processor. */
type Scrape = { readonly took: number; readonly own: number };
type Scraped = {
  readonly ms: readonly Scrape[];
  readonly floor: readonly Scrape[];
  readonly series: number;
  readonly mostBytes: number;
  readonly mostLine: string;
  readonly mostRatio: number;
  readonly honestBytes: number;
  readonly fell: readonly string[];
};
const of = (scrapes: readonly Scrape[], key: keyof Scrape) => {
  const sorted = scrapes.map((one) => one[key]).toSorted((a, b) => a - b);
  return { p50: sorted[sorted.length >> 1], p99: sorted[Math.floor(sorted.length * 0.99)] };
};
const timesOf = (scrapes: readonly Scrape[]) => ({ took: of(scrapes, 'took'), own: of(scrapes, 'own') });

/** Until it is ended; `pid`: whose page it is. */
export async function startScraping(url: string, pid: number) {
  const bare = new Worker(
    `const { parentPort } = require('node:worker_threads');
     let body = Buffer.alloc(0);
     parentPort.on('message', (text) => (body = Buffer.from(text)));
     const server = require('node:http').createServer((request, response) => response.end(body));
     const thread = '/proc/' + require('node:fs').readlinkSync('/proc/thread-self');
     server.listen(0, '127.0.0.1', () => parentPort.postMessage({ port: server.address().port, thread }));`,
    { eval: true },
  );
  const [bareAt] = (await once(bare, 'message')) as [{ readonly port: number; readonly thread: string }];
  const scraper = new Worker(
    `const { readdirSync, readFileSync } = require('node:fs');
     const { parentPort, workerData } = require('node:worker_threads');
     const ms = [], floor = [];
     let series = 0, asked = false, mostBytes = 0, mostLine = '', mostRatio = 0, honestBytes = 0;
     const fell = [], last = new Map();
     parentPort.on('message', () => (asked = true));
     const waitedMs = (thread) => {
       try {
         return Number(readFileSync(thread + '/schedstat', 'utf8').split(' ')[1]) / 1e6;
       } catch {
         return 0; // it has ended
       }
     };
     const get = async ({ url, threads }, into) => {
       const waited = () => threads().reduce((sum, thread) => sum + waitedMs(thread), waitedMs('/proc/thread-self'));
       const before = waited();
       const begun = performance.now();
       const page = await (await fetch(url)).text();
       const took = performance.now() - begun;
       into.push({ took, own: Math.max(0, took - Math.max(0, waited() - before)) });
       await new Promise((resolve) => setTimeout(resolve, 50));
       return page;
     };
     (async () => {
       while (!asked) {
         // A thread of the agent's own renders the page.
         const threads = () => readdirSync(workerData.agent.tasks).map((id) => workerData.agent.tasks + '/' + id);
         const page = await get({ url: workerData.agent.url, threads }, ms);
         await get({ url: workerData.bare.url, threads: () => [workerData.bare.thread] }, floor);
         parentPort.postMessage({ page });
         const lines = page.split('\\n').filter((line) => line !== '' && line[0] !== '#');
         series = Math.max(series, lines.length);
         for (const line of lines) {
           const [name, value] = [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))];
           if (!/^\\w+_total\\b/.test(name)) continue;
           if (value < last.get(name) && fell.length < 20) fell.push(name + ': ' + last.get(name) + ' to ' + value);
           // Also of what is not on every page: it goes on where it was.
           last.set(name, value);
         }
         for (const line of lines) {
           const value = Number(line.slice(line.lastIndexOf(' ')));
           if (/^cotenant_(container|process|device|foreign)_memory_(used|peak)_bytes/.test(line) && value > mostBytes) [mostBytes, mostLine] = [value, line];
           if (/^cotenant_container_memory_used_bytes{.*pod="honest-/.test(line)) honestBytes = Math.max(honestBytes, value);
           if (/^cotenant_(container|process)_sm_utilization_ratio/.test(line)) mostRatio = Math.max(mostRatio, value);
         }
       }
       parentPort.postMessage({ ms, floor, series, mostBytes, mostLine, mostRatio, honestBytes, fell });
     })();`,
    {
      eval: true,
      workerData: {
        agent: { url, tasks: `/proc/${pid}/task` },
        bare: { url: `http://127.0.0.1:${bareAt.port}`, thread: bareAt.thread },
      },
    },
  );
  const scraped = new Promise<Scraped>((resolve) => {
    scraper.on('message', (message: Scraped | { readonly page: string }) => {
      if ('page' in message) bare.postMessage(message.page);
      else resolve(message);
    });
  });
  return {
    async end() {
      scraper.postMessage('end');
      const { ms, floor, series, ...seen } = await scraped;
      return { ...seen, scrapes: { count: ms.length, series, agent: timesOf(ms), bare: timesOf(floor) } };
    },
  };
}

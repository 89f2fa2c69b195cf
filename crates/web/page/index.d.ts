/** A path in a folder, with slashes, and the file. */
export type Named = [path: string, file: Blob | Uint8Array];

export interface AuditOptions {
  /** Chips, systems or both, as `thane audit --target` takes them: `["m4", "a19+ios26"]` or `"m4,a19"`. */
  targets?: string[] | string;
  /** Compute units that Core ML may use. */
  units?: "cpuAndNeuralEngine" | "all" | "cpuAndGPU" | "cpuOnly";
  /** Report this function only. */
  function?: string;
  /** Input lengths that functions of flexible shapes are priced at. */
  lengths?: number[];
  /** Also give the report as a page. */
  page?: boolean;
  /** The name of the model in the report, instead of that of its folder. */
  name?: string;
  /** Ends the audit. In Node, where an audit does not yield, it has no effect. */
  signal?: AbortSignal;
  /** Hears what is being done, and how many bytes of the model were read for it. */
  onProgress?: (progress: { phase: string; bytes: number }) => void;
}

export interface AuditResult {
  /** The bytes that `thane audit --json` prints for the model. */
  json: string;
  /** The same, parsed: docs/json.md of Thane has its fields. */
  report: Record<string, unknown>;
  /** The page that `thane audit --format html` writes, if it was asked for. */
  page?: string;
}

/**
 * Audits a Core ML package, a compiled model, a folder of them, or MIL text.
 *
 * The input is the path of one or of a .zip (in Node), a Blob that is a .zip or a .mil file, or the files of
 * a folder: a FileList, or pairs of paths and files. In a browser the work is done in a worker, which reads
 * of the files what it needs.
 */
export function audit(input: string | Blob | Iterable<Named | File>, options?: AuditOptions): Promise<AuditResult>;

export interface About {
  version: string;
  /** The target where none is chosen. */
  usual: string;
  chips: { name: string; marketing: string; systems: ("mac" | "phone" | "pad")[] }[];
  /** Names of releases, the newest first. */
  releases: { mac: string; phone: string; pad: string }[];
  units: string[];
}

/** The chips, systems and compute units that a model can be audited for. */
export function about(): Promise<About>;

export interface BucketsOptions {
  /** Number of texts of each length in tokens: `{ 128: 5 }`, or the same as JSON. */
  histogram: Record<number, number> | string;
  /** Milliseconds of calls by length, two or more. Beyond them, time grows in proportion to the length. */
  times: [length: number, ms: number][];
  /** Most tokens that the model takes; longer texts count as cut. */
  maxTokens: number;
  /** Buckets are rounded up to multiples of so many tokens: 32 if absent. */
  align?: number;
  /** Most buckets to try: 6 if absent. */
  count?: number;
}

export interface BucketPlan {
  buckets: number[];
  ms_per_text: number;
  /** How many of the tokens that are computed are padding, 0 to 1. */
  padded: number;
  /** Cost over that of the unlimited plan, less 1. */
  loss: number;
}

export interface Buckets {
  texts: number;
  truncated: number;
  tokens: number;
  longest: number;
  max_tokens: number;
  align: number;
  /** The best with one bucket, two, and so on. */
  plans: BucketPlan[];
  /** Buckets of the plan that is proposed. */
  knee: number;
  /** With as many buckets as help. */
  unlimited: BucketPlan;
}

/** Chooses the lengths of an embedding model that get a function of their own, as `thane buckets` does. */
export function buckets(options: BucketsOptions): Promise<Buckets>;

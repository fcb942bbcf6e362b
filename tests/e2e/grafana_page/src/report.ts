// What went wrong on the page, left where the camera finds it: the test fails on any of it.
export interface PageReport {
  dashboard: string;
  errors: string[];
  queries: { panel: string; expr: string; series: number }[];
  empty: string[];
  panels: string[];
}

export const report: PageReport = { dashboard: '', errors: [], queries: [], empty: [], panels: [] };

export function fail(what: unknown): void {
  report.errors.push(String((what as Error)?.stack ?? what).slice(0, 2000));
}

export function watchErrors(): void {
  window.addEventListener('error', (event) => fail(event.error ?? event.message));
  window.addEventListener('unhandledrejection', (event) => fail(event.reason));
}

export function send(): void {
  (window as any).pageReport = report;
}

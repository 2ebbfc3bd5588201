! The time loop both programs share: initial field, equal steps up to each frame, frames and diagnostics.
module simulation
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  use grid, only: grid_t
  use exact, only: solution
  use stepper, only: advance, tendency_of
  use diagnostics, only: total, write_diagnostics
  use frames, only: write_frame
  implicit none

contains

  ! limit is the largest stable step; the step taken divides the interval between two frames evenly.
  subroutine run(d, g, rhs, limit, folder)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    procedure(tendency_of) :: rhs
    real(dp), intent(in) :: limit
    character(len=*), intent(in) :: folder
    real(dp), allocatable :: q(:, :, :), work(:, :, :), tendency(:, :, :)
    real(dp) :: dt, initial_total
    integer :: frame, step, per_frame
    allocate(q, source=initial_field(d, g))
    allocate(work, mold=q)
    allocate(tendency(g%nx, g%ny, d%species))
    per_frame = max(1, ceiling(d%time_end / (d%frames * limit)))
    dt = d%time_end / (d%frames * per_frame)
    initial_total = total(g, interior(g, q))
    call write_frame(folder, 0, 0, 0.0_dp, dt, interior(g, q))
    do frame = 1, d%frames
      do step = 1, per_frame
        call advance(d%stepper, rhs, dt, 1 + ghosts, q, work, tendency)
      end do
      call write_frame(folder, frame, frame * per_frame, frame * per_frame * dt, dt, interior(g, q))
    end do
    call write_diagnostics(folder//'/diagnostics.txt', d, g, interior(g, q), d%time_end, initial_total)
  end subroutine run

  function initial_field(d, g) result(q)
    type(deck_t), intent(in) :: d
    type(grid_t), intent(in) :: g
    real(dp), allocatable :: q(:, :, :)
    integer :: i, j
    allocate(q(1-ghosts:g%nx+ghosts, 1-ghosts:g%ny+ghosts, d%species), source=0.0_dp)
    do j = 1, g%ny
      do i = 1, g%nx
        q(i, j, :) = solution(d, g, i, j, 0.0_dp)
      end do
    end do
  end function initial_field

  pure function interior(g, q) result(inside)
    type(grid_t), intent(in) :: g
    real(dp), intent(in) :: q(1-ghosts:, 1-ghosts:, :)
    real(dp) :: inside(g%nx, g%ny, size(q, 3))
    inside = q(1:g%nx, 1:g%ny, :)
  end function interior

  subroutine arguments(deck_path, folder)
    character(len=:), allocatable, intent(out) :: deck_path, folder
    character(len=400) :: text
    if (command_argument_count() /= 2) error stop 'usage: PROGRAM DECK OUTPUT_FOLDER'
    call get_command_argument(1, text)
    deck_path = trim(text)
    call get_command_argument(2, text)
    folder = trim(text)
  end subroutine arguments

end module simulation
